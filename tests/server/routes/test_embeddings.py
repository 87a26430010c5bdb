"""Embeddings, scores and reranking over HTTP, with a small real model in a process of its own."""

import struct
from base64 import b64decode
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import torch
from openai import OpenAI

from tests.runner.encoders.support import saved_encoder, tokenizer
from tests.server.real import running

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


def test_pooling_returns_embeddings_under_another_name(real: httpx.Client) -> None:
    due = embedded(real, input=TEXTS)
    for body in ({}, {"task": "embed"}, {"encoding_format": "base64"}):
        got = real.post("/pooling", json={"input": TEXTS, **body}).json()
        assert [one["object"] for one in got["data"]] == ["pooling"] * len(TEXTS)
        for one, vector in zip(got["data"], due, strict=True):
            data = one["data"]
            found = (
                data
                if isinstance(data, list)
                else struct.unpack(f"<{len(vector)}f", b64decode(data))
            )
            assert found == pytest.approx(vector, abs=1e-5)
    whole = embedded(real, input=TEXTS[0], normalize=False)
    got = real.post("/pooling", json={"input": TEXTS[0], "use_activation": False}).json()
    assert got["data"][0]["data"] == pytest.approx(whole[0], abs=1e-5)


def test_documents_may_be_objects(real: httpx.Client) -> None:
    parts = {"content": [{"type": "text", "text": "the quick "}, {"type": "text", "text": "fox"}]}
    body = {"query": {"text": TEXTS[0]}, "documents": [TEXTS[2], parts]}
    best, _ = real.post("/rerank", json=body).json()["results"]
    assert best["index"] == 1
    assert best["document"] == {"text": TEXTS[0]}
    assert best["relevance_score"] == pytest.approx(1.0, abs=1e-4)
    got = real.post("/score", json={"queries": TEXTS[0], "items": [parts]}).json()
    assert got["data"][0]["score"] == pytest.approx(1.0, abs=1e-4)


def test_texts_are_cut_to_a_number_of_tokens(real: httpx.Client) -> None:
    ids = real.post("/tokenize", json={"prompt": TEXTS[1]}).json()["tokens"]
    body = {"text_1": TEXTS[0], "text_2": TEXTS[1], "max_tokens_per_doc": 3}
    got = real.post("/score", json=body).json()
    first, second = embedded(real, input=TEXTS[0])[0], embedded(real, input=[ids[:3]])[0]
    due = sum(x * y for x, y in zip(first, second, strict=True))
    assert got["data"][0]["score"] == pytest.approx(due, abs=1e-4)
    assert got["usage"]["prompt_tokens"] < len(ids) + len(TEXTS[0])


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[httpx.Client, Any]]:
    """A server with a small classifier, and the same classifier in transformers."""
    folder = tmp_path_factory.mktemp("classifier")
    labels = {0: "bad", 1: "fair", 2: "good"}
    model = saved_encoder(folder, "ModernBertForSequenceClassification", id2label=labels)
    with running(folder) as server:
        yield server.http, model


@torch.inference_mode()
def logits_of(model: Any, text: str, other: str | None = None) -> torch.Tensor:
    return model(torch.tensor([tokenizer().encode(text, other).ids])).logits[0]


def test_classes_of_texts(classes: tuple[httpx.Client, Any]) -> None:
    http, model = classes
    texts = ["the cat", "a dog sat on the mat"]
    got = http.post("/classify", json={"input": texts}).json()
    assert got["id"].startswith("classify-")
    assert got["usage"]["prompt_tokens"] == 4 + 8
    for place, (text, one) in enumerate(zip(texts, got["data"], strict=True)):
        logits = logits_of(model, text)
        assert one["index"] == place
        assert one["num_classes"] == 3
        assert one["probs"] == pytest.approx(logits.softmax(-1).tolist(), abs=1e-5)
        assert one["label"] == ["bad", "fair", "good"][int(logits.argmax())]
    got = http.post("/classify", json={"input": texts[0], "use_activation": False}).json()
    due = logits_of(model, texts[0])
    assert got["data"][0]["probs"] == pytest.approx(due.tolist(), abs=1e-4)
    got = http.post("/pooling", json={"input": texts[0], "task": "classify"}).json()
    assert got["data"][0]["data"] == pytest.approx(due.softmax(-1).tolist(), abs=1e-5)


def test_a_classifier_scores_and_reranks_pairs(classes: tuple[httpx.Client, Any]) -> None:
    http, model = classes
    documents = ["a dog", "the mat sat", "cats"]
    due = [float(logits_of(model, "the cat", one).softmax(-1)[-1]) for one in documents]
    got = http.post("/v1/score", json={"text_1": "the cat", "text_2": documents}).json()
    assert [one["score"] for one in got["data"]] == pytest.approx(due, abs=1e-5)
    got = http.post("/v2/rerank", json={"query": "the cat", "documents": documents}).json()
    found = {one["index"]: one["relevance_score"] for one in got["results"]}
    assert [found[place] for place in range(3)] == pytest.approx(due, abs=1e-5)
    assert list(found.values()) == sorted(found.values(), reverse=True)
    body = {"text_1": "the cat", "text_2": "a dog", "use_activation": False}
    raw = float(logits_of(model, "the cat", "a dog")[-1])
    got = http.post("/score", json=body).json()
    assert got["data"][0]["score"] == pytest.approx(raw, abs=1e-4)


@pytest.mark.parametrize(
    ("path", "body", "complaint"),
    [
        ("/v1/embeddings", {"input": "a"}, "use /classify, /v1/score or /v1/rerank"),
        ("/pooling", {"input": "a", "task": "embed"}, "use /classify, /v1/score or /v1/rerank"),
        ("/pooling", {"input": "a", "dimensions": 2}, "this model has classes"),
        ("/classify", {}, "give one of input and messages"),
        ("/classify", {"input": "a " * 99}, "maximum context length"),
        ("/score", {"text_1": "a", "text_2": "b", "instruction": "c"}, "no template for pairs"),
        ("/v1/completions", {"prompt": "a"}, "only makes embeddings or scores"),
    ],
)
def test_what_a_classifier_refuses(
    classes: tuple[httpx.Client, Any], path: str, body: dict[str, Any], complaint: str
) -> None:
    response = classes[0].post(path, json=body)
    assert response.status_code == 400, response.text
    assert complaint in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "body", "complaint"),
    [
        ("/classify", {"input": "a"}, "this model has no classes"),
        ("/pooling", {"input": "a", "task": "classify"}, "this model has no classes"),
        ("/pooling", {"input": "a", "task": "token_embed"}, "use one of embed, classify"),
        ("/pooling", {"input": "a", "embed_dtype": "fp8_e4m3"}, "remove embed_dtype"),
        ("/score", {"text_1": "a", "text_2": "b", "use_activation": False}, "are cosines"),
        ("/rerank", {"query": {"image": "a"}, "documents": ["a"]}, "an object has no text"),
    ],
)
def test_what_a_decoder_refuses(
    real: httpx.Client, path: str, body: dict[str, Any], complaint: str
) -> None:
    response = real.post(path, json=body)
    assert response.status_code == 400, response.text
    assert complaint in response.json()["error"]["message"]


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
