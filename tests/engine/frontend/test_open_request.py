"""One choice: what was told adds up, and what comes after the end is dropped."""

from math import inf

from paceline.core.events import Timings
from paceline.core.plan import Choice, Ended
from paceline.core.request import Finish
from paceline.engine.api import Alternative, SamplingParams, TokenLogprob
from paceline.engine.choice_rows import ChoiceRows
from paceline.engine.frontend.open_request import OpenRequest
from tests.engine.support import Ear, as_request, tokenizer


def conversation(**given: object) -> tuple[OpenRequest, Ear]:
    params, ear = SamplingParams(**given), Ear()  # type: ignore[arg-type]
    request = as_request(tokenizer().encode("hello"), params)
    return OpenRequest(request, params, "hello", ear, ChoiceRows(), tokenizer(), 0.0), ear


def test_half_a_character_is_withheld_and_shown_as_such_at_the_end() -> None:
    ids = tokenizer().encode("😀")
    whole, ear = conversation()
    for id in ids:
        whole.choices[0].add([id])
    assert "".join(delta.text for delta in ear.deltas) == "😀"
    assert all(delta.text in ("", "😀") for delta in ear.deltas)
    half, ear = conversation()
    begun = [id for id in range(tokenizer().vocab_size) if tokenizer().token_bytes(id) == b"\xf0"]
    assert not half.choices[0].add(begun)
    assert ear.deltas[0].text == ""
    assert half.choices[0].add((), ended=Ended("reference", Finish.LENGTH))
    assert ear.joined(0).text == "\ufffd"


def test_what_may_begin_a_stop_string_comes_with_the_end() -> None:
    ids = tokenizer().encode("hello")
    one, ear = conversation(stop="hello!")
    one.choices[0].add(ids)
    assert ear.joined(0).text == ""
    one.choices[0].add((), ended=Ended("reference", Finish.LENGTH))
    assert ear.joined(0).text == "hello"
    assert ear.joined(0).finish_reason == "length"


def test_of_several_tokens_those_behind_the_stop_string_are_dropped() -> None:
    ids = tokenizer().encode("the quick brown fox jumps")
    one, ear = conversation(stop=tokenizer().decode(ids[:3]), logprobs=0)
    told = [TokenLogprob(Alternative(id, -1.0, "", b""), ()) for id in ids]
    assert not one.choices[0].add(ids[:1], told[:1])
    assert one.choices[0].add(ids[1:], told[1:])
    answer = ear.joined(0)
    assert list(answer.token_ids) == ids[:3]
    assert answer.logprobs == tuple(told[:3])


def test_a_character_that_the_prompt_begins_is_told_whole() -> None:
    letters = {tokenizer().token_bytes(id): id for id in range(tokenizer().vocab_size)}
    ids = [letters[bytes([one])] for one in "😀".encode()]
    params, ear = SamplingParams(), Ear()
    one = OpenRequest(
        as_request(ids[:2], params), params, None, ear, ChoiceRows(), tokenizer(), 0.0
    )
    one.choices[0].add(ids[2:])
    assert ear.joined(0).text == "😀"


def test_time_runs_from_the_arrival() -> None:
    params = SamplingParams()
    request = as_request([5], params)
    one = OpenRequest(request, params, None, Ear(), ChoiceRows(), tokenizer(), 5.0, timeout=2.0)
    assert one.due == 7.0
    assert OpenRequest(request, params, None, Ear(), ChoiceRows(), tokenizer(), 5.0).due == inf


def test_nothing_is_told_after_the_end() -> None:
    one, ear = conversation(stop="l")
    assert one.choices[0].add(tokenizer().encode("hello"))
    assert one.all_ended
    assert not one.choices[0].add(tokenizer().encode("hello"))
    assert not one.choices[0].add((), ended=Ended("reference", Finish.ABORT))
    assert len(ear.deltas) == 1
    output = one.close(Ended("reference", Finish.ABORT, timings=Timings(total_s=3.0), cached=2))
    assert ear.output is output
    assert (output.outputs[0].text, output.outputs[0].finish_reason) == ("he", "stop")
    assert (output.usage.cached_tokens, output.timings.total_s) == (2, 3.0)
    assert output.usage.total_tokens == len(one.request.prompt) + len(ear.joined(0).token_ids)


def test_the_best_are_told_with_the_end() -> None:
    one, ear = conversation(n=2, best_of=3)
    ids = tokenizer().encode("hello thing")
    choices = (Choice((*ids, 1), Finish.STOP, -1.0, 1), Choice((ids[0],), Finish.LENGTH, -2.0))
    one.close(Ended("reference", Finish.STOP, choices=choices))
    assert [delta.index for delta in ear.deltas] == [0, 1]
    assert ear.deltas[0].text == "hello thing"
    assert [delta.finish_reason for delta in ear.deltas] == ["stop", "length"]
