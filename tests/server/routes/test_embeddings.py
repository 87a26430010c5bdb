"""Embeddings, scores and reranking over HTTP, with a small real model in a process of its own."""

import struct
from base64 import b64decode
from typing import Any

import httpx
import pytest
from openai import OpenAI

TEXTS = ["the quick fox", "a b c d e f g h i j k", "fox"]


def embedded(real: httpx.Client, **body: Any) -> list[Any]:
    response = real.post("/v1/embeddings", json=body)
    assert response.status_code == 200, response.text
    got = response.json()
    assert got["object"] == "list"
    assert got["usage"]["prompt_tokens"] == got["usage"]["total_tokens"] > 0
    assert [one["index"] for one in got["data"]] == list(range(len(got["data"])))
    return [one["embedding"] for one in got["data"]]


def test_embeddings_have_length_1_and_do_not_depend_on_their_neighbours(
    real: httpx.Client,
) -> None:
    together = embedded(real, input=TEXTS)
    for text, vector in zip(TEXTS, together, strict=True):
        assert sum(x * x for x in vector) == pytest.approx(1.0, abs=1e-5)
        (alone,) = embedded(real, input=text)
        assert alone == pytest.approx(vector, abs=1e-5)
    ids = [real.post("/tokenize", json={"prompt": text}).json()["tokens"] for text in TEXTS]
    for found, due in zip(embedded(real, input=ids), together, strict=True):
        assert found == pytest.approx(due, abs=1e-5)


def test_forms_of_an_embedding(real: httpx.Client) -> None:
    (whole,) = embedded(real, input=TEXTS[0], normalize=False)
    (short,) = embedded(real, input=TEXTS[0], dimensions=3, normalize=False)
    assert short == pytest.approx(whole[:3], abs=1e-5)
    (text,) = embedded(real, input=TEXTS[0], encoding_format="base64", normalize=False)
    assert struct.unpack(f"<{len(whole)}f", b64decode(text)) == pytest.approx(whole, abs=1e-5)
    (chat,) = embedded(real, messages=[{"role": "user", "content": TEXTS[0]}])
    assert len(chat) == len(whole)


def test_the_openai_client_reads_them(real: httpx.Client) -> None:
    client = OpenAI(base_url=f"{real.base_url}/v1", api_key="none")  # it asks for base64
    found = client.embeddings.create(
        model=real.get("/v1/models").json()["data"][0]["id"], input="a"
    )
    (due,) = embedded(real, input="a")
    assert found.data[0].embedding == pytest.approx(due, abs=1e-5)


def test_scores_are_cosines(real: httpx.Client) -> None:
    vectors = embedded(real, input=TEXTS)
    due = [sum(x * y for x, y in zip(vectors[0], one, strict=True)) for one in vectors]
    got = real.post("/v1/score", json={"text_1": TEXTS[0], "text_2": TEXTS}).json()
    assert [one["score"] for one in got["data"]] == pytest.approx(due, abs=1e-4)
    got = real.post("/score", json={"queries": TEXTS, "documents": TEXTS}).json()
    assert [one["score"] for one in got["data"]] == pytest.approx([1.0] * 3, abs=1e-4)


def test_reranking_sorts_documents(real: httpx.Client) -> None:
    body = {"query": TEXTS[0], "documents": TEXTS}
    for path in ("/v1/rerank", "/v2/rerank", "/rerank"):
        results = real.post(path, json=body).json()["results"]
        scores = [one["relevance_score"] for one in results]
        assert scores == sorted(scores, reverse=True)
        assert results[0]["index"] == 0
        assert results[0]["document"] == {"text": TEXTS[0]}
    body |= {"top_n": 1, "return_documents": False}
    (best,) = real.post("/v1/rerank", json=body).json()["results"]
    assert best.keys() == {"index", "relevance_score"}


@pytest.mark.parametrize(
    ("path", "body", "complaint"),
    [
        ("embeddings", {}, "give one of input and messages"),
        ("embeddings", {"input": []}, "it is empty"),
        ("embeddings", {"input": ["a", ""]}, "it is empty"),
        ("embeddings", {"input": "a", "dimensions": 10**6}, "it must lie in 1.."),
        ("embeddings", {"input": "a", "dimensions": 0}, "greater than or equal to 1"),
        ("embeddings", {"input": "a", "encoding_format": "hex"}, "'float' or 'base64'"),
        ("embeddings", {"input": "a " * 9999}, "maximum context length"),
        ("embeddings", {"input": [10**8]}, "out of vocabulary"),
        ("score", {"text_1": "a"}, "text_2: it is missing"),
        ("score", {"text_1": ["a", "b"], "text_2": ["c", "d", "e"]}, "cannot be compared"),
        ("rerank", {"query": "a", "documents": []}, "at least 1 item"),
    ],
)
def test_bad_requests(real: httpx.Client, path: str, body: dict[str, Any], complaint: str) -> None:
    response = real.post(f"/v1/{path}", json=body)
    assert response.status_code == 400, response.text
    assert complaint in response.json()["error"]["message"]
