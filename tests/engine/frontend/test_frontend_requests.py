"""What becomes of requests in a front end: refusals, names, ends and counts."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from paceline.core.errors import PromptTooLong, RequestError
from paceline.core.plan import Candidates, Ended
from paceline.core.request import Finish
from paceline.engine.api import GenerationRequest, Report, SamplingParams
from paceline.engine.frontend.frontend import Frontend
from paceline.engine.loop.figures import first_figures
from paceline.engine.loop.messages import Abort, Capacity, Delivery, Question
from paceline.text.chat_template import ChatTemplate
from tests.engine.frontend.harness import PROMPTS, Harness
from tests.engine.support import Ear, ask, components, tokenizer


def test_a_failed_step_is_told_with_what_came_before() -> None:
    harness = Harness(components(lambda plan, where: plan.step == 4 and where == "wait"))
    ear = harness.begin(ask("hello", max_tokens=10, seed=1, n=2))
    harness.run()
    assert ear.output is not None
    assert "step 4 failed" in ear.output.error
    assert {answer.finish_reason for answer in ear.output.outputs} == {"error"}
    assert ear.output.usage.completion_tokens > 0


def test_a_refusal_reaches_its_client() -> None:
    harness = Harness(components())
    refused = harness.begin(ask("hello " * 300))
    fine = harness.begin(ask("hello"))
    harness.run()
    assert isinstance(refused.error, RequestError)
    assert fine.output is not None


@pytest.mark.parametrize(
    ("one", "complaint"),
    [
        (GenerationRequest(prompt=""), "the prompt is empty"),
        (GenerationRequest(prompt_token_ids=[5, 100_000]), "token id 100000"),
        (
            GenerationRequest(prompt_token_ids=[tokenizer().vocab_size]),
            "out of vocabulary; the vocabulary has",
        ),
        (GenerationRequest(prompt_token_ids=[-1]), "negative"),
        (GenerationRequest(prompt_token_ids=["a"]), "token ids"),  # type: ignore[list-item]
        (GenerationRequest(messages=[]), "message"),
        (GenerationRequest(messages=[{"content": "x"}]), "role"),
        (ask("a", logit_bias={5000: 1.0}), "logit_bias"),
        (GenerationRequest(prompt="a", deadline=-1.0), "deadline"),
        (GenerationRequest(prompt="a", priority=10**30), "priority"),
        (GenerationRequest(prompt="a", priority=-(2**63) - 1), "priority"),
        (GenerationRequest(prompt="half \ud800"), "surrogate"),
    ],
)
def test_malformed_asks_are_refused_at_once(one: GenerationRequest, complaint: str) -> None:
    harness = Harness(components())
    with pytest.raises(RequestError, match=complaint):
        harness.begin(one)
    assert not harness.frontend.open


def test_a_prompt_without_room_for_one_more_token_is_too_long() -> None:
    frontend = Harness(components()).frontend
    frontend.max_model_len = 5
    with pytest.raises(PromptTooLong, match="a prompt of 5 tokens leaves no room"):
        frontend.begin(GenerationRequest(prompt_token_ids=[7] * 5), Ear())
    assert len(frontend.begin(GenerationRequest(prompt_token_ids=[7] * 4), Ear()).prompt) == 4


def test_what_is_asked_reaches_the_engine() -> None:
    frontend = Harness(components()).frontend
    one = GenerationRequest(
        prompt_token_ids=[5, 6],
        text="as it was written",
        priority=3,
        tenant="t",
        cache_salt="s",
        deadline=2.0,
        arrival=1.5,
        params=SamplingParams(
            seed=4, n=2, beam_width=3, length_penalty=0.5, early_stopping=True, stop_token_ids=[7]
        ),
    )
    request = frontend.begin(one, Ear())
    assert (request.priority, request.tenant, request.cache_salt) == (3, "t", "s")
    assert (request.deadline, request.arrival, request.seed) == (2.0, 1.5, 4)
    assert (request.n, request.beam_width, request.length_penalty) == (2, 3, 0.5)
    assert (request.early_stopping, request.stop_token_ids) == (True, (7,))
    assert frontend.open[request.id].prompt == "as it was written"


def test_where_only_the_prompt_is_asked_about_no_token_ends_it() -> None:
    params = SamplingParams(max_tokens=0, prompt_logprobs=0, stop_token_ids=[7])
    request = Harness(components()).frontend.begin(
        GenerationRequest(prompt="hello", params=params), Ear()
    )
    assert (request.max_tokens, request.ignore_eos, request.stop_token_ids) == (1, True, ())


class Late:
    """A front end whose clock is set by hand."""

    def __init__(self) -> None:
        self.now, self.handle = 0.0, -1
        template = ChatTemplate.of(tokenizer())
        self.frontend = Frontend(tokenizer(), template, lambda: self.now)

    def begin(self, timeout: float | None, **params: Any) -> Ear:
        ear, chosen = Ear(), SamplingParams(**params)
        one = GenerationRequest(prompt="hello", request_id="a", timeout=timeout, params=chosen)
        self.handle = self.frontend.begin(one, ear).handle
        return ear

    def tell(self, ended: Ended | None, ids: Sequence[int] = (), **columns: Any) -> list[Abort]:
        """What the engine tells of an end, with tokens of the first child."""
        rows = min(len(ids), 1)
        told = Delivery(
            self.now,
            np.full(rows, self.handle),
            np.array(ids, np.int32).reshape(rows, -1) if rows else np.empty((0, 1), np.int32),
            np.full(rows, len(ids), np.int32),
            ended=() if ended is None else (ended,),
            **columns,
        )
        return self.frontend.deliver(told)


@pytest.mark.parametrize("stop", ["hello", "else"])
@pytest.mark.parametrize("child", [-1, 0])
def test_what_ends_with_its_text_is_not_aborted(child: int, stop: str) -> None:
    late = Late()
    ear = late.begin(None, n=2, stop=stop)
    assert late.tell(Ended("a", Finish.LENGTH, child=child), tokenizer().encode("hello")) == []
    assert ear.joined(0).finish_reason == ("stop" if stop == "hello" else "length")
    assert ("a" in late.frontend.open) == (child == 0)


def test_a_name_is_taken_until_the_engine_lets_go_of_a_late_request() -> None:
    late = Late()
    ear = late.begin(5.0, n=2)
    late.now = 4.9
    assert late.frontend.expire() == []
    late.now = 5.0
    assert late.frontend.expire() == ["a"]
    assert ear.output is not None
    assert {one.finish_reason for one in ear.output.outputs} == {"timeout"}
    late.tell(Ended("a", Finish.ABORT, child=0))  # one of two
    with pytest.raises(RequestError, match="already open"):
        late.begin(None)
    late.tell(Ended("a", Finish.ABORT))
    late.begin(None)


@pytest.mark.parametrize(
    "leave",
    [
        lambda frontend: frontend.release_id("a"),
        lambda frontend: frontend.drop("a"),
        lambda frontend: frontend.end_all(Finish.ERROR, "the power went out"),
    ],
    ids=["let go", "dropped", "all ended"],
)
def test_a_name_is_free_when_nobody_will_tell_of_its_end(leave: Callable[[Frontend], Any]) -> None:
    late = Late()
    late.begin(5.0)
    late.now = 6.0
    assert late.frontend.expire() == ["a"]
    leave(late.frontend)
    late.begin(None)


def test_the_time_of_one_is_not_that_of_the_next_of_its_name() -> None:
    late = Late()
    late.begin(5.0)
    late.frontend.drop("a")
    late.now = 1.0
    late.begin(20.0)
    late.now = 6.0
    assert late.frontend.expire() == []
    late.now = 21.0
    assert late.frontend.expire() == ["a"]


def test_a_failure_is_remembered_by_when_it_was() -> None:
    late = Late()
    assert late.frontend.last_failure_s is None
    late.begin(None)
    late.tell(Ended("a", Finish.ABORT))
    assert late.frontend.last_failure_s is None
    late.begin(None)
    late.now = 3.0
    late.tell(Ended("a", Finish.ERROR, message="broken"))
    late.now = 5.0
    assert late.frontend.last_failure_s == 2.0
    late.begin(None)
    late.frontend.end("a", Finish.ERROR, "the power went out")
    late.now = 6.0
    assert late.frontend.last_failure_s == 1.0


def test_exactly_one_kind_of_prompt_is_given() -> None:
    with pytest.raises(RequestError, match="give one of"):
        GenerationRequest()
    with pytest.raises(RequestError, match="give one of"):
        GenerationRequest(prompt="a", prompt_token_ids=[1])


def test_the_end_of_the_engine_ends_everything() -> None:
    harness = Harness(components())
    ears = [harness.begin(ask("hello", max_tokens=20)) for _ in range(3)]
    for _ in range(4):
        harness.turn()
    harness.frontend.end_all(Finish.ERROR, "the power went out")
    for ear in ears:
        assert ear.output is not None
        assert ear.output.error == "the power went out"
        assert ear.output.outputs[0].finish_reason == "error"
    assert not harness.frontend.open


def test_the_time_between_tokens_is_that_since_the_ones_before() -> None:
    late = Late()
    late.begin(None, ignore_eos=True)
    for now in (1.0, 2.0, 4.0):
        late.now = now
        late.tell(None, [5])
    report = late.frontend.metrics.report(first_figures(Capacity(256, 4, 96, 8, 64)))
    gaps = report.histograms["inter_token_latency_seconds"]
    assert (gaps.count, gaps.total) == (2, 3.0)
    assert report.histograms["time_to_first_token_seconds"].total == 1.0


def test_as_many_alternatives_are_told_as_were_asked_for_and_as_there_are() -> None:
    for wanted, there in ((1, [7]), (2, [7, 6]), (3, [7, 6])):
        late = Late()
        ear = late.begin(None, logprobs=wanted)
        found = Candidates(np.array([[7, 6, -1]], np.int32), np.zeros((1, 3), np.float32))
        late.tell(None, [5], logprob=np.zeros((1, 1), np.float32), candidates=found)
        (told,) = ear.joined(0).logprobs or ()
        assert [one.token_id for one in told.top] == there


def test_tokens_behind_a_stop_string_are_not_counted() -> None:
    late, ids = Late(), tokenizer().encode("hello")
    late.begin(None, stop="hello")
    assert late.tell(None, ids) == [Abort("a")]
    assert late.tell(None, ids) == []
    report = late.frontend.metrics.report(first_figures(Capacity(256, 4, 96, 8, 64)))
    assert report.counters["generation_tokens"] == len(ids)


def counted(harness: Harness) -> Report:
    return harness.frontend.metrics.report(harness.engine.answer(Question("gauges")))


@pytest.mark.parametrize(
    "params",
    [{"best_of": 3}, {"stop": "e", "ignore_eos": True, "n": 3}, {"max_tokens": 0}],
    ids=str,
)
def test_tokens_are_counted_that_were_told(params: dict[str, Any]) -> None:
    harness = Harness(components(depth=3))
    ear = harness.begin(ask("hello", **{"max_tokens": 30, "seed": 2} | params))
    harness.run()
    assert ear.output is not None
    report = counted(harness)
    assert report.counters["generation_tokens"] == ear.output.usage.completion_tokens
    assert report.counters["prompt_tokens"] == ear.output.usage.prompt_tokens
    assert report.histograms["time_to_first_token_seconds"].count == 1
    assert sum(report.request_success.values()) == len(ear.output.outputs)


def test_those_who_are_cut_are_counted_by_their_end() -> None:
    late = Late()
    late.begin(5.0, n=2)
    late.now = 5.0
    late.frontend.expire()
    report = late.frontend.metrics.report(first_figures(Capacity(256, 4, 96, 8, 64)))
    assert report.request_success == {"timeout": 2}


def mixed_requests() -> list[GenerationRequest]:
    forms: list[dict[str, Any]] = [
        {"max_tokens": 40},
        {"max_tokens": 9, "n": 3, "temperature": 1.0, "seed": 5},
        {"max_tokens": 30, "stop": ["th", "e q"]},
        {"max_tokens": 12, "logprobs": 2},
        {"max_tokens": 6, "n": 2, "best_of": 3, "temperature": 1.0, "seed": 1},
        {"max_tokens": 5, "beam_width": 2},
        {"max_tokens": 0, "prompt_logprobs": 1},
        {"max_tokens": 70, "min_tokens": 66},
    ]
    return [
        ask(prompt, f"{prompt} {place}", **form)
        for place, form in enumerate(forms)
        for prompt in PROMPTS
    ]


@pytest.mark.parametrize("depth", [1, 2])
def test_deferred_requests_have_the_same_outputs_and_figures(depth: int) -> None:
    """Whether text is made as tokens arrive, at the end, or from some moment on."""
    found: list[list[Any]] = []
    for mode in ("as they arrive", "at the end", "from the third turn on"):
        harness = Harness(components(depth=depth, num_blocks=64))
        ears: list[Ear] = []
        for one in mixed_requests():
            ears.append(Ear())
            deferred = mode != "as they arrive"
            harness.engine.submit(harness.frontend.begin(one, ears[-1], deferred))
        for _ in range(2):
            harness.turn()
        if mode == "from the third turn on":
            for name in [*harness.frontend.open]:
                harness.frontend.listen(name)
        harness.run()
        outputs = [ear.output for ear in ears if ear.output is not None]
        answers = [
            # The oracle scores a prompt by its salt, which is another one in each run.
            (replace(one, prompt_logprobs=None), len(one.prompt_logprobs or ()), output.usage)
            for output in outputs
            for one in output.outputs
        ]
        report = harness.frontend.metrics.report(harness.engine.answer(Question("gauges")))
        counts = {name: one.count for name, one in report.histograms.items()}
        found.append([answers, report.counters, counts, report.request_success])
    assert found[1] == found[0]
    assert found[2] == found[0]
    assert len(found[0][0]) == sum(one.params.n for one in mixed_requests())


def test_a_deferred_request_has_one_delta_and_an_aborted_one_what_had_come() -> None:
    harness, ears = Harness(components()), (Ear(), Ear())
    for name, ear in zip("ab", ears, strict=True):
        one = ask("hello", name, max_tokens=20, ignore_eos=True)
        harness.engine.submit(harness.frontend.begin(one, ear, deferred=True))
    for _ in range(6):
        harness.turn()
    assert [ear.deltas for ear in ears] == [[], []]
    harness.engine.abort("a")
    harness.run()
    aborted, whole = (ear.output for ear in ears)
    assert aborted is not None
    assert whole is not None
    assert [len(ear.deltas) for ear in ears] == [1, 1]
    assert aborted.outputs[0].finish_reason == "abort"
    some = aborted.outputs[0].token_ids
    assert 0 < len(some) < 20
    assert whole.outputs[0].token_ids[: len(some)] == some


def test_tokens_of_a_request_that_was_given_up_reach_nobody_else() -> None:
    """The engine may still send some, under a row that another request has by then."""
    late = Late()
    late.begin(None, max_tokens=5)
    old = late.handle
    late.frontend.end("a", Finish.ERROR, "the engine is gone")
    ear = late.begin(None, max_tokens=5)
    late.handle = old
    late.tell(None, tokenizer().encode("hello"))
    assert ear.deltas == []
