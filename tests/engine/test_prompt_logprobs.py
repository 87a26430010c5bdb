"""Log-probabilities of prompts: all of them, once each, however the prompt is computed."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from paceline.core.capabilities import Capabilities
from paceline.core.errors import RequestError
from paceline.core.plan import Ended
from paceline.core.pooling import PromptScores
from paceline.core.request import Finish, Request
from paceline.engine.api import GenerationRequest, SamplingParams
from paceline.engine.choice_rows import ChoiceRows
from paceline.engine.components import EngineComponents
from paceline.engine.frontend.open_request import OpenRequest
from tests.engine.frontend.harness import Harness
from tests.engine.support import (
    Ear,
    OraclePort,
    as_request,
    ask,
    components,
    expected_prompt,
    tokenizer,
)

LONG = "the quick brown fox jumps over the lazy dog and everything thing nothing "
PROMPTS = [LONG, "hello world hello there", LONG + "hello", "a", "Straße 你好 naïve café"]
WAYS: dict[str, dict[str, Any]] = {
    "whole": {"num_blocks": 200, "max_num_batched_tokens": 512},
    "in chunks": {"max_num_batched_tokens": 9},
    "ahead": {"depth": 3, "max_num_batched_tokens": 16},
    "prefill first": {"depth": 2, "discipline": "prefill_first"},
    "without the prefix cache": {"enable_prefix_caching": False},
    "tight": {"num_blocks": 24, "max_num_batched_tokens": 24},
    "tight, ahead": {"num_blocks": 24, "max_num_batched_tokens": 24, "depth": 3},
    "swapped": {"num_blocks": 24, "preemption_mode": "swap", "swap_space": 96, "depth": 2},
    "drafted": {"num_speculative_tokens": 3, "speculation": "fixed", "depth": 2},
}


class Open(Harness):
    """A harness that remembers its requests, whose salts are their own."""

    def __init__(self, made: EngineComponents) -> None:
        super().__init__(made)
        self.requests: list[Request] = []

    def begin(self, one: GenerationRequest) -> Ear:
        ear = Ear()
        self.requests.append(self.frontend.begin(one, ear))
        self.engine.submit(self.requests[-1])
        return ear


def check(ear: Ear, request: Request, wanted: int) -> None:
    assert ear.output is not None
    assert not ear.output.error
    assert ear.output.usage.cached_tokens == 0
    told = ear.output.prompt_logprobs
    assert told is not None
    assert told[0] is None
    for token, entry, score in zip(
        request.prompt[1:].tolist(), told[1:], expected_prompt(request), strict=True
    ):
        assert entry is not None
        assert entry.chosen.token_id == token
        assert entry.chosen.text == tokenizer().token(token)
        assert entry.chosen.logprob == pytest.approx(score.logprob)
        assert entry.rank == score.rank
        top = [(one.token_id, one.logprob) for one in entry.top]
        assert top == [(id, pytest.approx(value)) for id, value in score.best[:wanted]]
    for answer in ear.output.outputs:
        assert answer.prompt_logprobs == told
        own = [delta for delta in ear.deltas if delta.index == answer.index]
        assert [delta.prompt_logprobs is not None for delta in own] == [True, *[False] * len(own)][
            : len(own)
        ]


def run(generations: Sequence[GenerationRequest], wanted: int, **settings: Any) -> Open:
    harness = Open(components(**settings))
    ears = [harness.begin(one) for one in generations]
    harness.run()
    for ear, request in zip(ears, harness.requests, strict=True):
        check(ear, request, wanted)
    return harness


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("family", [{}, {"n": 2}, {"best_of": 2}])
def test_they_are_those_of_the_reference(way: str, family: dict[str, int]) -> None:
    params: dict[str, Any] = {"max_tokens": 20, "seed": 3, "ignore_eos": True, **family}
    generations = [ask(prompt, prompt_logprobs=2, **params) for prompt in PROMPTS]
    harness = run(generations, 2, **WAYS[way])
    if "num_blocks" in WAYS[way] and way != "whole":
        assert harness.engine.scheduler.stats.preemptions, "the pool was not tight"


def test_beams_and_a_single_token_too() -> None:
    run([ask("hello world", prompt_logprobs=1, n=2, use_beam_search=True, max_tokens=4)], 1)
    run([ask(LONG, prompt_logprobs=1, max_tokens=1)], 1, depth=3)


@pytest.mark.parametrize("family", [{}, {"n": 2}, {"best_of": 2}, {"beam_width": 2}])
def test_a_prompt_alone(family: dict[str, int]) -> None:
    every = range(tokenizer().vocab_size)  # whatever is drawn could be the end
    params: dict[str, Any] = {"max_tokens": 0, "stop_token_ids": every, **family}
    harness = Open(components(depth=3, max_num_batched_tokens=16))
    ear = harness.begin(ask(LONG, prompt_logprobs=2, **params))
    harness.run()
    check(ear, harness.requests[0], 2)
    assert ear.output is not None
    assert ear.output.usage.completion_tokens == 0
    for answer in ear.output.outputs:
        assert (answer.text, answer.token_ids, answer.finish_reason) == ("", (), "length")


def test_without_alternatives() -> None:
    run([ask(LONG, prompt_logprobs=0, max_tokens=3)], 0)


def test_nothing_is_found_in_the_cache_and_the_others_find_as_before() -> None:
    harness = run([ask(LONG, prompt_logprobs=1, max_tokens=2) for _ in range(3)], 1)
    first = harness.begin(ask(LONG, max_tokens=2))
    harness.run()
    again = harness.begin(ask(LONG, max_tokens=2))
    harness.run()
    assert first.output is not None
    assert first.output.usage.cached_tokens == 0
    assert again.output is not None
    assert again.output.usage.cached_tokens > 0
    assert again.output.prompt_logprobs is None


def test_a_name_that_is_used_again_gets_nothing_of_the_one_before() -> None:
    harness = Open(components(depth=3, max_num_batched_tokens=8))
    first = harness.begin(ask(LONG * 3, "a", prompt_logprobs=1, max_tokens=2))
    harness.turn()
    harness.engine.abort("a")
    while first.output is None:
        harness.turn()
    assert first.output.outputs[0].finish_reason == "abort"
    second = harness.begin(ask("hello " + LONG * 3, "a", prompt_logprobs=1, max_tokens=2))
    harness.run()
    check(second, harness.requests[1], 1)


def test_what_was_computed_is_told_with_a_failure() -> None:
    harness = Open(
        components(lambda plan, where: plan.step == 3 and where == "wait", max_num_batched_tokens=8)
    )
    ear = harness.begin(ask(LONG * 2, prompt_logprobs=1, max_tokens=2))
    harness.run()
    assert ear.output is not None
    told = ear.output.prompt_logprobs
    assert told is not None
    assert [entry is not None for entry in told] == [
        False,
        *[True] * 16,
        *[False] * (len(told) - 17),
    ]


def test_a_device_that_cannot_tell_them_refuses() -> None:
    made = components()
    assert isinstance(made.runner, OraclePort)
    made.runner.capabilities = Capabilities(logprobs=True)
    harness = Harness(made)
    refused, fine = harness.begin(ask("hello", prompt_logprobs=1)), harness.begin(ask("hello"))
    harness.run()
    assert isinstance(refused.error, RequestError)
    assert "prompt_logprobs" in str(refused.error)
    assert fine.output is not None


@pytest.mark.parametrize("number", [-2, 2**31, 1.5, True])
def test_a_number_that_makes_no_sense(number: Any) -> None:
    with pytest.raises(RequestError, match="prompt_logprobs"):
        SamplingParams(prompt_logprobs=number)


def scored(logprob: float, count: int) -> PromptScores:
    """Scores from the second token on, without alternatives."""
    none = np.empty((count, 0))
    columns = np.full(count, logprob, np.float32), np.ones(count, np.int32)
    return PromptScores("a", 0, 1, *columns, none.astype(np.int32), none.astype(np.float32))


def test_what_is_told_again_changes_nothing() -> None:
    params, ear = SamplingParams(prompt_logprobs=0, n=2), Ear()
    request = as_request([5, 6, 7, 8], params)
    one = OpenRequest(request, params, None, ear, ChoiceRows(), tokenizer(), 0.0)

    assert one.scores is not None
    one.scores.add(scored(-1.0, 2))
    one.scores.add(scored(-2.0, 3))
    one.choices[0].add([9])
    one.scores.add(scored(-3.0, 3))
    one.choices[1].add([9], ended=Ended("reference", Finish.LENGTH, child=1))
    one.choices[0].add([9])
    values = [
        [entry and entry.chosen.logprob for entry in delta.prompt_logprobs or ()]
        for delta in ear.deltas
    ]
    assert values == [[None, -1.0, -1.0, -2.0]] * 2 + [[]]
