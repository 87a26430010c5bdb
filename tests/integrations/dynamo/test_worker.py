"""Workers of ours behind Dynamo's frontend: file discovery, TCP and ZMQ, no etcd and no NATS."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from paceline import LLM, SamplingParams
from paceline.integrations.dynamo.worker import card_folder
from paceline.text.tokenizer import Tokenizer
from tests.engine.support import tokenizer
from tests.integrations.dynamo.processes import DynamoFleet, dynamo_fleet, worker_of
from tests.wiring.support import DESCRIBED, until

LONGEST = 2048
SETTINGS: dict[str, Any] = {"load_format": "dummy", "device": "cpu", "kv_cache_gib": 0.01}
FLAGS = [f"--{name.replace('_', '-')}={value}" for name, value in SETTINGS.items()]
GROUPS, SHARED = 8, 64  # prompts with a common prefix, and its tokens


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DynamoFleet]:
    """Two workers with the same random weights."""
    folder = tmp_path_factory.mktemp("dynamo")
    (folder / "config.json").write_text(
        json.dumps({**DESCRIBED, "max_position_embeddings": LONGEST})
    )
    flags = ("--router-mode", "kv", "--router-prefill-load-scale", "8", "--migration-limit", "3")
    with dynamo_fleet(folder, *flags) as made:
        for _ in range(2):
            made.add(*FLAGS)
        made.until_ready()
        yield made


def prompt_of(group: int, tail: int) -> list[int]:
    return [(31 * group + place * place) % 390 for place in range(SHARED)] + [tail, group, 3]


def test_requests_go_where_their_prefix_is(fleet: DynamoFleet) -> None:
    """Eight at once are spread over the workers; what follows them is not, one by one or at once,
    when the router weighs what is to be computed more than what is in use."""

    def answered(prompt: list[int]) -> int:
        return worker_of(fleet.complete(prompt, max_tokens=24))

    def at_once(tail: int) -> list[int]:
        with ThreadPoolExecutor(GROUPS) as clients:
            return list(clients.map(answered, [prompt_of(one, tail) for one in range(GROUPS)]))

    first = at_once(0)
    assert len(set(first)) == len(fleet.workers)
    until(lambda: cached(fleet, prompt_of(GROUPS, 1)))  # by then, events have arrived
    for group in range(GROUPS):
        answer = fleet.complete(prompt_of(group, 2), max_tokens=1)
        assert worker_of(answer) == first[group]
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == SHARED
    assert [at_once(tail) for tail in (3, 4)] == [first, first]


def cached(fleet: DynamoFleet, prompt: list[int]) -> bool:
    usage = fleet.complete(prompt, max_tokens=1)["usage"]
    return usage["prompt_tokens_details"]["cached_tokens"] == SHARED


def test_the_frontend_answers_what_the_engine_says(fleet: DynamoFleet) -> None:
    prompt = prompt_of(20, 0)
    with LLM(str(fleet.folder), **SETTINGS) as llm:
        params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logprobs=2)
        (alone,) = llm.generate([prompt], params, progress=False)
    (whole,) = fleet.complete(prompt, max_tokens=12, logprobs=2)["choices"]
    scores = alone.outputs[0].logprobs
    assert scores is not None
    assert (whole["text"], whole["finish_reason"]) == (alone.outputs[0].text, "length")
    assert whole["logprobs"]["token_logprobs"] == pytest.approx(
        [one.chosen.logprob for one in scores], abs=1e-5
    )
    stop = next(one.chosen.text for one in scores[2:] if one.chosen.text.isascii())
    # With ignore_eos, the frontend forgets all stop conditions.
    (cut,) = fleet.complete(prompt, max_tokens=12, stop=[stop], ignore_eos=False)["choices"]
    assert (cut["text"], cut["finish_reason"]) == (whole["text"].partition(stop)[0], "stop")
    refused = fleet.post("/v1/completions", prompt=prompt, n=2, temperature=1)
    assert (refused.status_code, "n is 2" in refused.text) == (400, True)


def test_a_client_that_hangs_up_ends_its_request(fleet: DynamoFleet) -> None:
    aborted = 'vllm:request_success_total{engine="0",finished_reason="abort"'
    with fleet.stream([9] * 20, max_tokens=LONGEST - 30) as events:
        next(events)
    until(lambda: sum(one.metric(aborted) for one in fleet.workers) == 1)


def test_a_stream_survives_its_worker(fleet: DynamoFleet) -> None:
    """The last test: a worker is gone after it."""
    prompt = prompt_of(30, 0)
    whole = fleet.complete(prompt, max_tokens=300)
    with fleet.stream(prompt, max_tokens=300) as events:
        pieces = [next(events) for _ in range(20)]
        (serving,) = [one for one in fleet.workers if one.instance == worker_of(pieces[-1])]
        serving.process.kill()
        pieces += events
    assert "".join(one["choices"][0]["text"] for one in pieces) == whole["choices"][0]["text"]
    assert pieces[-1]["choices"][0]["finish_reason"] == "length"
    (other,) = [one for one in fleet.workers if one is not serving]
    assert other.metric("vllm:generation_tokens_total") > 0
    # Until the frontend has noticed, answers name the worker that they were first sent to.
    until(lambda: worker_of(fleet.complete(prompt, max_tokens=1)) == other.instance)


def content(folder: Path, name: str) -> dict[str, Any]:
    return json.loads((folder / name).read_text())


@pytest.mark.parametrize("own", [{}, {"model_type": "qwen3", "architectures": ["Qwen3"]}])
def test_a_card_has_tokenizer_template_and_end_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: dict[str, Any]
) -> None:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    if own:
        (tmp_path / "config.json").write_text(json.dumps({**own, "eos_token_id": 7}))
    card = card_folder(tmp_path, tokenizer(), 512)
    config = content(card, "config.json")
    assert {**config, **own} == config
    assert {"model_type", "architectures"} <= config.keys()  # Dynamo needs them
    assert (config["eos_token_id"], config["max_position_embeddings"]) == ([1], 512)
    assert content(card, "generation_config.json")["eos_token_id"] == [1]
    read = Tokenizer.load(card)
    text = "the quick fox <|im_end|> didn't"
    assert read.encode(text) == tokenizer().encode(text)
    assert read.chat_template == tokenizer().chat_template
    assert card_folder(tmp_path, tokenizer(), 512) == card  # for every worker
    assert card_folder(tmp_path, tokenizer(), 256) != card
