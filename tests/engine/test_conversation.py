"""One choice: what was told adds up, and what comes after the end is dropped."""

from paceline.core.plan import Choice, Ended
from paceline.core.request import Finish
from paceline.engine.api import SamplingParams
from paceline.engine.conversation import Conversation
from paceline.engine.delivery import Departure, Timings
from tests.engine.support import Ear, as_request, tokenizer


def conversation(**given: object) -> tuple[Conversation, Ear]:
    params, ear = SamplingParams(**given), Ear()  # type: ignore[arg-type]
    request = as_request(tokenizer().encode("hello"), params)
    return Conversation(request, params, "hello", ear, tokenizer(), 0.0), ear


def test_half_a_character_is_withheld_and_shown_as_such_at_the_end() -> None:
    ids = tokenizer().encode("😀")
    whole, ear = conversation()
    for id in ids:
        whole.push(-1, [id])
    assert "".join(piece.text for piece in ear.pieces) == "😀"
    assert all(piece.text in ("", "😀") for piece in ear.pieces)
    half, ear = conversation()
    begun = [id for id in range(tokenizer().vocab_size) if tokenizer().token_bytes(id) == b"\xf0"]
    assert not half.push(-1, begun)
    assert ear.pieces[0].text == ""
    assert half.push(-1, (), ended=Ended("reference", Finish.LENGTH))
    assert ear.joined(0).text == "\ufffd"


def test_what_may_begin_a_stop_string_comes_with_the_end() -> None:
    ids = tokenizer().encode("hello")
    one, ear = conversation(stop="hello!")
    one.push(-1, ids)
    assert ear.joined(0).text == ""
    one.push(-1, (), ended=Ended("reference", Finish.LENGTH))
    assert ear.joined(0).text == "hello"
    assert ear.joined(0).finish_reason == "length"


def test_nothing_is_told_after_the_end() -> None:
    one, ear = conversation(stop="l")
    assert one.push(-1, tokenizer().encode("hello"))
    assert one.told
    assert not one.push(-1, tokenizer().encode("hello"))
    assert not one.push(-1, (), ended=Ended("reference", Finish.ABORT))
    assert len(ear.pieces) == 1
    output = one.close(Departure(Ended("reference", Finish.ABORT), Timings(total_s=3.0), 2))
    assert ear.output is output
    assert (output.outputs[0].text, output.outputs[0].finish_reason) == ("he", "stop")
    assert (output.usage.cached_tokens, output.timings.total_s) == (2, 3.0)


def test_the_best_are_told_with_the_end() -> None:
    one, ear = conversation(n=2, best_of=3)
    ids = tokenizer().encode("hello thing")
    choices = (Choice((*ids, 1), Finish.STOP, -1.0, 1), Choice((ids[0],), Finish.LENGTH, -2.0))
    one.close(Departure(Ended("reference", Finish.STOP, choices=choices)))
    assert [piece.index for piece in ear.pieces] == [0, 1]
    assert ear.pieces[0].text == "hello thing"
    assert [piece.finish_reason for piece in ear.pieces] == ["stop", "length"]
