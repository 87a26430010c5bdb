"""Text in, text out: what clients read is what the reference says, piece by piece."""

from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest

from paceline.core.errors import RequestError
from paceline.engine.api import GenerationRequest, SamplingParams
from paceline.engine.frontend.frontend import Frontend
from paceline.testing import reference as model
from paceline.text.chat_template import ChatTemplate
from tests.engine.frontend.harness import PROMPTS, Harness, run, stop_strings, text_of
from tests.engine.support import (
    MAX_MODEL_LEN,
    Ear,
    as_request,
    ask,
    components,
    expected,
    expected_text,
    tokenizer,
)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_texts_are_those_of_the_reference(depth: int) -> None:
    generations = [ask(prompt, max_tokens=40, seed=seed) for prompt in PROMPTS for seed in range(3)]
    for one, ear in zip(generations, run(generations, depth=depth, num_blocks=80), strict=True):
        assert one.prompt is not None
        ids, reason = expected(one.prompt, one.params)
        assert ear.output is not None
        (answer,) = ear.output.outputs
        assert list(answer.token_ids) == ids
        assert answer.text == expected_text(ids, reason)
        assert answer.finish_reason == reason
        assert answer.stop_reason is None
        assert ear.output.prompt == one.prompt
        assert ear.output.usage.prompt_tokens == len(tokenizer().encode(one.prompt))
        assert ear.output.usage.completion_tokens == len(ids)


def test_pieces_come_as_they_are_made_and_never_cut_a_character() -> None:
    (ear,) = run([ask("hello", max_tokens=60, seed=4)])
    assert len(ear.deltas) == 60
    assert [len(delta.token_ids) for delta in ear.deltas] == [1] * 60
    whole = tokenizer().decode(ear.joined(0).token_ids)
    assert "".join(delta.text for delta in ear.deltas) == whole


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("include", [False, True])
def test_a_stop_string_ends_the_text_wherever_it_lies(depth: int, include: bool) -> None:
    params = SamplingParams(max_tokens=30, seed=2, ignore_eos=True)
    ids, _ = expected("hello", params)
    text = tokenizer().decode(ids)
    stops = stop_strings(text)
    assert len(stops) > 5
    generations = [
        GenerationRequest(
            prompt="hello",
            params=replace(params, stop=stop, include_stop_str_in_output=include),
        )
        for stop in stops
    ]
    for stop, ear in zip(stops, run(generations, depth=depth), strict=True):
        assert ear.output is not None
        (answer,) = ear.output.outputs
        end = text.index(stop) + len(stop)
        assert answer.text == text[: end if include else end - len(stop)]
        assert (answer.finish_reason, answer.stop_reason) == ("stop", stop)
        used = len(answer.token_ids)
        assert list(answer.token_ids) == ids[:used]
        assert stop in tokenizer().decode(ids[:used])
        assert stop not in tokenizer().decode(ids[: used - 1])
        assert ear.output.usage.completion_tokens == used


def test_the_engine_lets_go_of_a_text_that_has_stopped() -> None:
    ids, _ = expected("hello", SamplingParams(max_tokens=200, seed=2, ignore_eos=True))
    stop = tokenizer().decode(ids[:3])
    harness = Harness(components())
    one = ask("hello", "a", max_tokens=200, seed=2, stop=stop, ignore_eos=True)
    ear = harness.begin(one)
    while not ear.deltas or ear.deltas[-1].finish_reason is None:
        harness.turn()
    assert "a" in harness.frontend.open  # until the engine confirms, the name is taken
    with pytest.raises(RequestError, match="already open"):
        harness.frontend.begin(one, Ear())
    harness.run()
    assert harness.engine.scheduler.stats.sampled < 6
    assert ear.output is not None
    assert ear.output.timings.total_s > 0


def test_a_stop_token_is_no_part_of_the_text_unless_asked_for() -> None:
    params = SamplingParams(max_tokens=20, seed=1, ignore_eos=True)
    ids, _ = expected("hello", params)
    stop = ids[6]
    used = ids[: ids.index(stop) + 1]
    named = replace(params, stop_token_ids=[stop])
    shown = replace(named, include_stop_str_in_output=True)
    without, with_it = run(
        [GenerationRequest(prompt="hello", params=one) for one in (named, shown)]
    )
    assert text_of(without) == tokenizer().decode(used[:-1])
    assert text_of(with_it) == tokenizer().decode(used)
    for ear in (without, with_it):
        answer = ear.joined(0)
        assert list(answer.token_ids) == used
        assert (answer.finish_reason, answer.stop_reason) == ("stop", stop)


def test_min_tokens_hold_off_stop_strings() -> None:
    params = SamplingParams(max_tokens=30, seed=2, ignore_eos=True)
    ids, _ = expected("hello", params)
    first = tokenizer().decode(ids)[0]
    early, late = run(
        [
            GenerationRequest(prompt="hello", params=replace(params, stop=first)),
            GenerationRequest(prompt="hello", params=replace(params, stop=first, min_tokens=20)),
        ]
    )
    assert len(early.joined(0).token_ids) < 20 <= len(late.joined(0).token_ids)


def test_special_tokens_are_left_out_or_shown() -> None:
    params = SamplingParams(max_tokens=100, seed=5, ignore_eos=True)
    for seed in range(40):
        ids, _ = expected("a", replace(params, seed=seed))
        if tokenizer().special & set(ids):
            params = replace(params, seed=seed)
            break
    ids, _ = expected("a", params)
    hidden, shown = run(
        [
            GenerationRequest(prompt="a", params=replace(params, skip_special_tokens=one))
            for one in (True, False)
        ]
    )
    assert text_of(hidden) == tokenizer().decode(ids)
    assert text_of(shown) == tokenizer().decode(ids, skip_special=False)
    assert text_of(hidden) != text_of(shown)


@pytest.mark.parametrize("depth", [1, 2])
def test_several_samples(depth: int) -> None:
    (ear,) = run([ask("the thing", max_tokens=12, n=3, seed=7)], depth=depth)
    assert ear.output is not None
    assert [answer.index for answer in ear.output.outputs] == [0, 1, 2]
    for index, answer in enumerate(ear.output.outputs):
        ids, reason = expected("the thing", SamplingParams(max_tokens=12), seed=7 + index)
        assert list(answer.token_ids) == ids
        assert (answer.text, answer.finish_reason) == (expected_text(ids, reason), reason)
    lengths = [len(answer.token_ids) for answer in ear.output.outputs]
    assert ear.output.usage.completion_tokens == sum(lengths)


def test_samples_stop_at_strings_one_by_one() -> None:
    params = SamplingParams(max_tokens=40, n=3, seed=7, ignore_eos=True)
    wholes = [tokenizer().decode(expected("a", params, seed=7 + one)[0]) for one in range(3)]
    stop = wholes[1][3]
    (ear,) = run([GenerationRequest(prompt="a", params=replace(params, stop=stop))])
    assert ear.output is not None
    for answer, whole in zip(ear.output.outputs, wholes, strict=True):
        assert answer.text == whole.split(stop)[0]
        assert answer.finish_reason == ("stop" if stop in whole else "length")


@pytest.mark.parametrize("depth", [1, 2])
def test_the_best_of_several_samples(depth: int) -> None:
    params = SamplingParams(max_tokens=8, n=2, best_of=4, seed=3)
    (ear,) = run([GenerationRequest(prompt="hello", params=params)], depth=depth)
    request = as_request(tokenizer().encode("hello"), params)
    wanted = model.best_of(request, tokenizer().vocab_size, MAX_MODEL_LEN)
    assert ear.output is not None
    assert [list(answer.token_ids) for answer in ear.output.outputs] == wanted
    assert len(ear.deltas) == 2  # nothing is told before it is known who is best
    every = replace(params, n=4)
    (all_of_them,) = run([GenerationRequest(prompt="hello", params=every)], depth=depth)
    assert all_of_them.output is not None
    assert ear.output.usage == all_of_them.output.usage  # what is not returned was generated too


def test_beam_search() -> None:
    params = SamplingParams(max_tokens=6, n=2, use_beam_search=True, beam_width=3)
    (ear,) = run([GenerationRequest(prompt="hello", params=params)])
    request = as_request(tokenizer().encode("hello"), params)
    wanted = model.beam_search(request, tokenizer().vocab_size, MAX_MODEL_LEN)
    assert ear.output is not None
    assert [answer.token_ids for answer in ear.output.outputs] == [one.tokens for one in wanted]
    assert [answer.finish_reason for answer in ear.output.outputs] == [
        one.finish.value for one in wanted
    ]


@pytest.mark.parametrize("moment", range(0, 14, 2))
@pytest.mark.parametrize(
    "family", [{"n": 1}, {"n": 3}, {"best_of": 3}, {"beam_width": 2}, {"n": 2, "stop": "e"}]
)
def test_an_abort_at_any_point_ends_every_choice(moment: int, family: dict[str, Any]) -> None:
    harness = Harness(components(depth=2))
    ear = harness.begin(ask("the quick brown fox jumps over", "a", max_tokens=10, seed=1, **family))
    for _ in range(moment):
        harness.turn()
    harness.engine.abort("a")
    harness.run()
    assert ear.output is not None
    assert len(ear.output.outputs) == family.get("n", 1)
    assert all(answer.finish_reason for answer in ear.output.outputs)
    if moment < 2:
        assert {answer.finish_reason for answer in ear.output.outputs} == {"abort"}


def test_a_conversation_goes_through_the_template() -> None:
    messages = [{"role": "user", "content": "hello <|im_end|>"}]
    params = SamplingParams(max_tokens=5)
    (ear,) = run([GenerationRequest(messages=messages, params=params)])
    text = "<|im_start|>user\nhello <|im_end|><|im_end|>\n<|im_start|>assistant\n"
    assert ear.output is not None
    assert ear.output.prompt == text
    ids = tokenizer().encode(text, special=False)
    assert list(ear.output.prompt_token_ids) == ids
    assert list(ear.joined(0).token_ids) == expected(ids, params)[0]


def test_log_probabilities_stand_beside_their_tokens() -> None:
    params = SamplingParams(max_tokens=6, seed=3, logprobs=4)
    plain = ask("hello", max_tokens=6, seed=3)
    told, untold = run([GenerationRequest(prompt="hello", params=params), plain])
    answer, request = told.joined(0), as_request(tokenizer().encode("hello"), params)
    assert answer.logprobs is not None
    assert untold.joined(0).logprobs is None
    assert len(answer.logprobs) == len(answer.token_ids)
    vocab = tokenizer().vocab_size
    for place, (id, one) in enumerate(zip(answer.token_ids, answer.logprobs, strict=True)):
        digest = model.digest_of(request, list(answer.token_ids[:place]))
        assert one.chosen.token_id == id
        assert one.chosen.logprob == model.logprobs(digest, vocab)[id]
        assert one.chosen.bytes == tokenizer().token_bytes(id)
        best = model.likeliest(digest, vocab, 4)
        assert [(each.token_id, each.logprob) for each in one.top] == best


def test_alternatives_are_told_for_every_token_also_where_others_have_drafts() -> None:
    told = ask("hello", max_tokens=20, seed=3, logprobs=2)
    drafting = {"num_speculative_tokens": 3, "speculation": "fixed"}
    one, other = run([told, ask("hello", max_tokens=20, seed=4)], **drafting)
    (alone,) = run([told])
    assert one.joined(0).logprobs == alone.joined(0).logprobs
    assert all(len(entry.top) == 2 for entry in one.joined(0).logprobs or ())
    assert other.output is not None


def test_a_template_sees_what_it_is_asked_with() -> None:
    source = "{{ messages[0].content }} {{ tools[0].name }} {{ mood }} {{ add_generation_prompt }}"
    frontend = Frontend(tokenizer(), ChatTemplate(source), lambda: 0.0)
    one = GenerationRequest(
        messages=[{"role": "user", "content": "hello"}],
        tools=[{"name": "hammer"}],
        variables={"mood": "merry"},
        add_generation_prompt=False,
    )
    assert frontend.text_of(one) == "hello hammer merry False"
    assert frontend.text_of(replace(one, continue_final_message=True)) == "hello"


def test_texts_are_framed_and_conversations_are_not() -> None:
    frontend, framed = Harness(components()).frontend, list[bool]()

    def noted(_text: str, special: bool = True) -> list[int]:
        framed.append(special)
        return [5]

    with patch.object(frontend.tokenizer, "encode", noted):
        frontend.begin(GenerationRequest(prompt="hello"), Ear())
        frontend.begin(GenerationRequest(messages=[{"role": "user", "content": "hello"}]), Ear())
    assert framed == [True, False]


@pytest.mark.parametrize("depth", [1, 3])
def test_the_engine_lets_go_of_one_choice_that_has_stopped(depth: int) -> None:
    params = SamplingParams(max_tokens=60, seed=2, n=3, ignore_eos=True)
    each = [expected("hello", params, seed=2 + index)[0] for index in range(3)]
    texts = [tokenizer().decode(ids) for ids in each]
    stop = next(one for one in stop_strings(texts[1]) if one not in texts[0] + texts[2])
    harness = Harness(components(depth=depth))
    ear = harness.begin(GenerationRequest(prompt="hello", params=replace(params, stop=stop)))
    harness.run()
    assert ear.output is not None
    answers = ear.output.outputs
    assert [one.finish_reason for one in answers] == ["length", "stop", "length"]
    assert [one.text for one in answers] == [texts[0], texts[1].split(stop)[0], texts[2]]
    used = [len(one.token_ids) for one in answers]
    assert used[0] == used[2] == 60 > used[1]
    assert ear.output.usage.completion_tokens == sum(used)
    sampled = harness.engine.scheduler.stats.sampled
    assert sum(used) <= sampled <= sum(used) + depth + 1
