"""Many prompts at once: results in order, nothing lost, nothing left behind."""

from dataclasses import replace
from signal import SIGINT, raise_signal
from typing import Any
from weakref import ref

import numpy as np
import pytest

from paceline.core.errors import RequestError, RequestFailed
from paceline.engine.api import GenerationRequest, SamplingParams
from paceline.engine.frontend.frontend import Frontend
from paceline.engine.loop.messages import EngineFailed
from paceline.engine.offline import offline as module
from paceline.engine.offline.offline import OfflineEngine
from paceline.engine.offline.progress import Progress, PromptCounts
from paceline.text.chat_template import ChatTemplate
from tests.engine.frontend.harness import one_of_three_stops
from tests.engine.support import (
    OraclePort,
    assert_nothing_left,
    build,
    expected,
    expected_text,
    tokenizer,
)


def llm(**settings: Any) -> OfflineEngine:
    return OfflineEngine("oracle", build, **settings)


def left_nothing(model: OfflineEngine) -> None:
    assert model.unfinished == 0
    assert_nothing_left(model._engine.scheduler)


def test_results_come_in_the_order_of_the_prompts() -> None:
    model = llm(depth=2)
    prompts = [f"thing {one}" for one in range(40)]
    params = SamplingParams(max_tokens=9, seed=1)
    outputs = model.generate(prompts, params, progress=False)
    for prompt, output in zip(prompts, outputs, strict=True):
        ids, reason = expected(prompt, params)
        assert output.prompt == prompt
        assert output.outputs[0].text == expected_text(ids, reason)
    left_nothing(model)


def test_thousands_of_prompts_at_once() -> None:
    model = llm(inbox_requests=64, max_num_queued_reqs=100, max_num_seqs=48, num_blocks=400)
    prompts = [[5 + one % 300, 6 + one // 300] for one in range(2000)]
    outputs = model.generate(prompts, SamplingParams(max_tokens=2), progress=False)
    assert [list(output.prompt_token_ids) for output in outputs] == prompts
    assert not any(output.error for output in outputs)
    assert all(len(output.outputs[0].token_ids) <= 2 for output in outputs)
    left_nothing(model)


def test_each_prompt_may_have_its_own_params() -> None:
    params = [SamplingParams(max_tokens=one, ignore_eos=True) for one in (1, 5, 3)]
    outputs = llm().generate(["a", "b", "c"], params, progress=False)
    assert [len(output.outputs[0].token_ids) for output in outputs] == [1, 5, 3]
    with pytest.raises(RequestError, match="3 prompts and 1 sampling_params"):
        llm().generate(["a", "b", "c"], params[:1])


def test_one_prompt_is_a_list_of_one() -> None:
    model = llm()
    ids = tokenizer().encode("hello")
    (text,) = model.generate("hello", progress=False)
    (numbers,) = model.generate(ids, progress=False)
    (asked,) = model.generate(GenerationRequest(prompt="hello"), progress=False)
    assert text.outputs == numbers.outputs == asked.outputs
    assert model.generate([], progress=False) == []


def test_a_prompt_may_be_written_as_others_do() -> None:
    model, ids = llm(), tokenizer().encode("hello")
    (wanted,) = model.generate("hello", progress=False)
    for given in (
        {"prompt": "hello"},
        {"prompt_token_ids": ids},
        [{"prompt_token_ids": np.array(ids)}],
        np.array(ids),
        [np.array(ids)],
        iter(["hello"]),
    ):
        (found,) = model.generate(given, progress=False)  # type: ignore[arg-type]
        assert found.outputs == wanted.outputs


@pytest.mark.parametrize(
    "given",
    [
        {"text": "a"},
        {"prompt": "a", "image": 3},
        b"abc",
        [True, False],
        7,
        [None],
        [[1.5]],
        [["a"]],
    ],
    ids=repr,
)
def test_what_is_no_prompt_is_refused(given: Any) -> None:
    with pytest.raises(RequestError, match="is no prompt"):
        llm().generate(given, progress=False)


@pytest.mark.parametrize("given", ["hello", {"role": "user"}, [["a"]], [["a"], [{}]]], ids=repr)
def test_what_is_no_conversation_is_refused(given: Any) -> None:
    with pytest.raises(RequestError, match="is no conversation"):
        llm().chat(given, progress=False)


@pytest.mark.parametrize("given", [{"temperature": 0}, [{"temperature": 0}], 7, "abc"], ids=repr)
def test_params_are_of_one_kind(given: Any) -> None:
    with pytest.raises(RequestError, match="sampling_params is"):
        llm().generate(["a"], given, progress=False)


def test_a_prompt_that_cannot_run_does_not_hold_up_the_others(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    model = llm()
    prompts = ["fine", "", "hello " * 400, "fine"]
    outputs = model.generate(prompts, SamplingParams(max_tokens=4))
    assert "4/4 prompts  2 failed" in capsys.readouterr().err
    (warning,) = caplog.messages
    assert warning.startswith("2 of 4 prompts failed; the error of each output says why")
    assert f"prompt 2 of 4: {outputs[1].error}" in warning
    assert "empty" in outputs[1].error
    assert "max_model_len" in outputs[2].error
    assert [output.outputs[0].finish_reason == "error" for output in outputs] == [0, 1, 1, 0]
    assert outputs[0].outputs == outputs[3].outputs
    assert [output.prompt for output in outputs] == prompts
    left_nothing(model)


def test_no_prompts_draw_no_bar(capsys: pytest.CaptureFixture[str]) -> None:
    assert llm().generate([]) == []
    assert capsys.readouterr().err == ""


def test_a_prompt_that_cannot_run_raises_on_request() -> None:
    model, params = llm(), SamplingParams(max_tokens=4)
    for prompts, match in [
        (["fine", ""], r"prompt 2 of 2: .*empty"),
        (["hello " * 400, "fine"], r"prompt 1 of 2: .*max_model_len"),
    ]:
        with pytest.raises(RequestFailed, match=match):
            model.generate(prompts, params, progress=False, raise_on_error=True)
        left_nothing(model)
    with pytest.raises(RequestFailed, match=r"prompt 1 of 1: .*at least one message"):
        model.chat([[]], params, progress=False, raise_on_error=True)


def test_a_request_that_fails_later_raises_on_request_and_drops_the_batch() -> None:
    model = llm(breaks=lambda plan, where: plan.step == 3 and where == "wait", max_num_seqs=2)
    with pytest.raises(RequestFailed, match=r"prompt 1 of 5: step 3 failed"):
        model.generate(["hello"] * 5, progress=False, raise_on_error=True)
    assert model.step() == []
    left_nothing(model)


def test_a_name_that_is_here_already_is_refused_and_loses_nothing() -> None:
    model, params = llm(), SamplingParams(max_tokens=3)
    twice = [
        GenerationRequest(prompt="a", request_id="d"),
        GenerationRequest(prompt="b", request_id="d"),
    ]
    first, second = model.generate(twice, params, progress=False)
    assert (first.error, second.error != "") == ("", True)
    left_nothing(model)
    model.enqueue(GenerationRequest(prompt="a", request_id="q"), params)
    model.generate(["b"] * 2, SamplingParams(max_tokens=20), progress=False)
    (again,) = model.generate(
        [GenerationRequest(prompt="c", request_id="q")], params, progress=False
    )
    assert "has not been returned yet" in again.error
    assert [output.request_id for output in model.step()] == ["q"]
    model.enqueue(GenerationRequest(prompt="a", request_id=str(model._names)), params)
    (plain,) = model.generate(["b"], params, progress=False)
    assert not plain.error


def test_a_prompt_of_no_kind_leaves_nothing_of_the_others() -> None:
    model = llm()
    with pytest.raises(RequestError):
        model.generate(["a", 5], SamplingParams(max_tokens=3), progress=False)  # type: ignore[list-item]
    left_nothing(model)


def test_chat_answers_one_conversation_or_several() -> None:
    model = llm()
    hello = [{"role": "user", "content": "hello"}]
    (one,) = model.chat(hello, progress=False)
    several = model.chat([hello, [*hello, *hello]], progress=False)
    assert one.outputs == several[0].outputs
    assert one.prompt is not None
    assert one.prompt.endswith("<|im_start|>assistant\n")
    assert len(several) == 2


def test_the_loop_can_be_driven_by_hand() -> None:
    model = llm()
    params = SamplingParams(max_tokens=5, ignore_eos=True)
    names = [
        model.enqueue("hello", params),
        model.enqueue(GenerationRequest(prompt="b", request_id="mine")),
    ]
    assert names[1] == "mine"
    with pytest.raises(RequestError, match="already open"):
        model.enqueue(GenerationRequest(prompt="c", request_id="mine"))
    (beside,) = model.generate("thing", progress=False)
    assert beside.outputs[0].finish_reason
    ended = []
    while len(ended) < 2:
        ended += model.step()
    assert {output.request_id for output in ended} == set(names)
    assert model.step() == []
    assert "hello" not in model.explain("mine")
    left_nothing(model)


def test_an_abort_ends_a_request_wherever_it_is() -> None:
    model = llm(inbox_requests=1)
    names = [model.enqueue("hello", SamplingParams(max_tokens=50)) for _ in range(3)]
    model.step()
    assert model.abort(["nobody", names[0], names[2]])  # it runs; the engine does not have it
    assert not model.abort("nobody")
    assert not model.abort([])
    ended = {output.request_id: output for output in model.step() + model.step()}
    assert set(ended) == {names[0], names[2]}
    assert {one.outputs[0].finish_reason for one in ended.values()} == {"abort"}
    model.abort(names[1])
    assert [one.request_id for one in model.step()] == [names[1]]
    left_nothing(model)


def test_an_interruption_leaves_nothing_running(monkeypatch: pytest.MonkeyPatch) -> None:
    model = llm()
    engine, turns = model._engine, [0]
    turn = engine.turn

    def interrupted() -> Any:
        turns[0] += 1
        if turns[0] == 5:
            raise KeyboardInterrupt
        return turn()

    monkeypatch.setattr(engine, "turn", interrupted)
    with pytest.raises(KeyboardInterrupt):
        model.generate(["a", "b"] * 20, SamplingParams(max_tokens=100), progress=False)
    assert model.unfinished == 0
    assert model.step() == []
    left_nothing(model)


@pytest.mark.usefixtures("interruptible")
def test_an_interruption_while_requests_are_added_leaves_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The request that was being added is dropped with the others."""
    model, begin = llm(), Frontend.begin

    def interrupted(self: Frontend, *given: Any, **named: Any) -> Any:
        request = begin(self, *given, **named)
        if len(self.open) == 3:
            raise_signal(SIGINT)
        return request

    monkeypatch.setattr(Frontend, "begin", interrupted)
    with pytest.raises(KeyboardInterrupt):
        model.generate(["a", "b"] * 4, SamplingParams(max_tokens=5), progress=False)
    assert model.unfinished == 0
    left_nothing(model)


def interrupt_at(model: OfflineEngine, call: str, number: int, patch: pytest.MonkeyPatch) -> None:
    """Ctrl-C inside a call of the runner."""
    runner, calls = model._engine._runner, [0]
    real = getattr(runner, call)

    def interrupted(*given: Any) -> Any:
        calls[0] += 1
        if calls[0] == number:
            raise_signal(SIGINT)
        return real(*given)

    patch.setattr(runner, call, interrupted)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("call", ["launch", "wait"])
def test_an_interruption_waits_for_the_end_of_a_turn(
    depth: int, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts, params = ["a b c", "d"] * 5, SamplingParams(max_tokens=12, ignore_eos=True)
    model, other = llm(depth=depth), llm(depth=depth)
    wanted = [out.outputs[0].token_ids for out in other.generate(prompts, params, progress=False)]
    interrupt_at(model, call, 5, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        model.generate(prompts, params, progress=False)
    assert model.unfinished == 0
    again = model.generate(prompts, params, progress=False)
    assert [out.outputs[0].token_ids for out in again] == wanted
    left_nothing(model)

    interrupt_at(other, call, 5, monkeypatch)  # who turns the loop by hand goes on where it was
    names = [other.enqueue(prompt, params) for prompt in prompts]
    found: dict[str, Any] = {}
    interrupts = 0
    while other.unfinished:
        try:
            ended = other.step()
        except KeyboardInterrupt:
            interrupts += 1
            continue
        found |= {out.request_id: out.outputs[0].token_ids for out in ended}
    assert interrupts == 1
    assert [found[name] for name in names] == wanted
    left_nothing(other)


@pytest.mark.parametrize("name", ["progress", "use_tqdm"])
def test_progress_is_shown_on_request(capsys: pytest.CaptureFixture[str], name: str) -> None:
    model = llm()
    model.generate(["a", "b"], **{name: True})
    shown = capsys.readouterr().err
    assert "2/2 prompts" in shown
    assert "tokens/s" in shown
    model.generate(["a", "b"], **{name: False})
    model.chat([{"role": "user", "content": "a"}], **{name: False})
    assert capsys.readouterr().err == ""


def test_sampling_fields_may_be_given_by_name() -> None:
    model, question = llm(), [{"role": "user", "content": "hello"}]
    params = SamplingParams(temperature=0.0, max_tokens=5)
    (named,) = model.generate("hello", temperature=0.0, max_tokens=5, progress=False)
    assert named.outputs == model.generate("hello", params, progress=False)[0].outputs
    (named,) = model.chat(question, temperature=0.0, max_tokens=5, progress=False)
    assert named.outputs == model.chat(question, params, progress=False)[0].outputs
    assert named.outputs == model.generate(question, params, progress=False)[0].outputs
    model.enqueue("hello", max_tokens=1)
    assert [one.usage.completion_tokens for one in model.step()] == [1]
    with pytest.raises(RequestError, match="priority is 1; give a list with one for each prompt"):
        model.generate("hello", priority=1)  # type: ignore[call-arg]


def test_a_conversation_may_have_a_template_of_its_own() -> None:
    model, question = llm(), [{"role": "user", "content": "hello"}]
    model._frontend.template = ChatTemplate(None)
    with pytest.raises(RequestFailed, match="no chat template: set chat_template"):
        model.chat(question, progress=False, raise_on_error=True)
    own = "{{ messages[0].content }}{{ tools | length }}{{ mood }}{{ add_generation_prompt }}"
    (output,) = model.chat(
        question,
        progress=False,
        chat_template=own,
        chat_template_kwargs={"mood": "merry"},
        tools=[{}, {}],
        add_generation_prompt=False,
    )
    assert output.prompt == "hello2merryFalse"


def test_metrics_count_what_was_done() -> None:
    model = llm()
    model.generate(
        ["hello hello"] * 3, SamplingParams(max_tokens=4, ignore_eos=True), progress=False
    )
    report = model.get_metrics()
    assert report.counters["generation_tokens"] == 12
    assert report.counters["prompt_tokens"] == 3 * len(tokenizer().encode("hello hello"))
    assert report.request_success == {"length": 3}
    assert report.gauges["num_requests_running"] == 0
    assert report.histograms["time_to_first_token_seconds"].count == 3
    assert report.histograms["inter_token_latency_seconds"].count == 9


def test_a_broken_engine_answers_everybody() -> None:
    def always(_plan: Any, where: str) -> bool:
        return where == "wait"

    model = llm(breaks=always, on_failure="stop", max_num_seqs=2)
    outputs = model.generate(["hello"] * 5, progress=False)
    assert all("step 1 failed" in output.error for output in outputs)
    (later,) = model.generate("hello", progress=False)
    assert "stopped" in later.error
    model.close()


def test_a_timeout_ends_a_prompt_and_not_the_others() -> None:
    model = llm(inbox_requests=1)
    params = SamplingParams(max_tokens=200, ignore_eos=True)
    late = [
        GenerationRequest(prompt="a", params=params, timeout=1e-6, request_id=name) for name in "xy"
    ]
    *cut, whole = model.generate(
        [*late, GenerationRequest(prompt="b", params=params)], progress=False
    )
    assert [one.outputs[0].finish_reason for one in cut] == ["timeout", "timeout"]
    assert whole.usage.completion_tokens == 200
    again = [GenerationRequest(prompt="a", request_id=name) for name in "xy"]
    assert not any(one.error for one in model.generate(again, progress=False))
    left_nothing(model)


def test_one_choice_that_stops_leaves_the_others_alone() -> None:
    params, stop = one_of_three_stops()
    (output,) = llm().generate("hello", replace(params, stop=stop), progress=False)
    assert [one.finish_reason for one in output.outputs] == ["length", "stop", "length"]


def test_a_number_whose_output_was_not_taken_is_not_given_again() -> None:
    model, short = llm(), SamplingParams(max_tokens=1)
    model.enqueue(GenerationRequest(prompt="a", request_id="1"), short)
    for _ in range(2):
        (output,) = model.generate("b", SamplingParams(max_tokens=9), progress=False)
        assert output.error == ""
    assert [one.request_id for one in model.step()] == ["1"]


def test_a_template_has_variables_of_its_own() -> None:
    model = llm()
    model._frontend.template = ChatTemplate("{{ mood }}")
    (output,) = model.chat(
        [{"role": "user", "content": "hello"}], progress=False, variables={"mood": "merry"}
    )
    assert output.prompt == "merry"


def test_progress_tells_what_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[tuple[int, int, int]] = []

    class Noted(Progress):
        def show(self, counts: PromptCounts) -> None:
            shown.append((counts.done, counts.read, counts.written))

        finish = show

    monkeypatch.setattr(module, "Progress", Noted)
    params = [SamplingParams(max_tokens=most, ignore_eos=True) for most in (2, 9)]
    outputs = llm().generate([[5, 6, 7], [8]], params)
    assert [one.usage.completion_tokens for one in outputs] == [2, 9]
    assert sorted(set(shown)) == [(0, 0, 0), (1, 3, 2), (2, 4, 11)]
    assert shown == sorted(shown)


def test_the_end_of_a_with_block_closes_the_model() -> None:
    with llm() as model:
        model.generate("hello", SamplingParams(max_tokens=2), progress=False)
        runner = model._engine._runner
    assert isinstance(runner, OraclePort)
    assert runner.closed
    with pytest.raises(RuntimeError, match="inside"), llm() as other:
        raise RuntimeError("inside")
    with pytest.raises(EngineFailed, match="closed"):
        other.step()


def test_a_closed_model_refuses_every_call() -> None:
    model = llm()
    model.enqueue("hello")
    model.step()
    model.close()
    model.close()
    assert model.unfinished == 0
    assert not model.abort("0")
    calls = [
        lambda: model.generate("hello", progress=False),
        lambda: model.generate([], progress=False),
        lambda: model.chat([{"role": "user", "content": "hello"}], progress=False),
        lambda: model.enqueue("hello"),
        model.step,
        lambda: model.explain("0"),
        model.get_metrics,
        model.reset_prefix_cache,
    ]
    for call in calls:
        with pytest.raises(EngineFailed, match=r"the LLM of 'oracle' is closed; create another"):
            call()


def test_a_closed_model_lets_go_of_its_runner() -> None:
    model = llm()
    runner = model._engine._runner
    runner.itself = runner  # type: ignore[attr-defined] - as graphs refer to what captured them
    gone = ref(runner)
    del runner
    model.close()
    assert gone() is None


def test_the_prefix_cache_can_be_reset() -> None:
    model, prompt = llm(), list(range(5, 17))
    params = SamplingParams(max_tokens=2)

    def cached() -> int:
        return model.generate(prompt, params, progress=False)[0].usage.cached_tokens

    assert (cached(), cached()) == (0, 8)
    assert model.reset_prefix_cache()
    assert cached() == 0
    model.enqueue(prompt, SamplingParams(max_tokens=20, ignore_eos=True))
    model.step()
    assert not model.reset_prefix_cache()
    assert model.reset_prefix_cache(reset_running_requests=True)
    while model.unfinished:
        model.step()
    left_nothing(model)


def test_the_tokenizer_is_the_models() -> None:
    with llm() as model:
        text = model.get_tokenizer()
        assert text.decode(text.encode("hello there")) == "hello there"


def test_explaining_a_forgotten_request_names_the_setting() -> None:
    model = llm(journal_requests=2)
    outputs = model.generate(["a", "b", "c"], SamplingParams(max_tokens=1), progress=False)
    assert "finished: " in model.explain(outputs[-1].request_id)
    with pytest.raises(RequestError, match="last 2 finished requests: raise journal_requests"):
        model.explain(outputs[0].request_id)
