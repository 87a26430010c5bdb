"""Frames are cut out of whole events, wherever the text stands in them."""

import json

import pytest

from paceline.server.schemas.envelope import NumberedFrame, TextFrame, cut, quoted


@pytest.mark.parametrize("fields", [{}, {"a": "0"}, {"a": '"0"1', "z": ["1", 0]}])
def test_a_frame_is_what_stands_around_a_text(fields: dict[str, object]) -> None:
    def write(text: str) -> bytes:
        return quoted({**fields, "text": text, "é": 1, **fields})

    frame = TextFrame.of(write)
    for text in ("", "a", "01", '"', "\x00\u2028é😀"):
        event = frame.before + quoted(text) + frame.after
        assert event == write(text)
        assert json.loads(event)["text"] == text


def test_a_number_may_grow_before_the_text() -> None:
    def write(number: int, text: str) -> bytes:
        return quoted({"item": "01", "number": number, "at": 0, "text": text, "end": [1]})

    frame = NumberedFrame.of(write)
    for number in (0, 9, 10, 123_456):
        assert frame.event(number, "a\n") == write(number, "a\n")


def test_events_that_differ_elsewhere_too_have_no_frame() -> None:
    with pytest.raises(AssertionError, match="more than one byte"):
        cut(b"a0b0", b"a1b1")
