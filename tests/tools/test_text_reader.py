from typing import TypeVar

from paceline.tools.json_call import json_value
from paceline.tools.text_reader import LONGEST_READ, TextReader, Waiting

T = TypeVar("T")

MARKERS = ("<a>", "<b>", "{")


def run(reader: TextReader, rule: Waiting[T], *pieces: str) -> T:
    """Run a rule with one piece after the other, and then the end."""
    remaining = list(pieces)
    while True:
        try:
            next(rule)
        except StopIteration as end:
            return end.value
        if remaining:
            reader.add(remaining.pop(0))
        else:
            reader.ended = True


def test_text_without_a_marker_is_read_to_its_end() -> None:
    reader = TextReader()
    assert run(reader, reader.find(MARKERS), "one <") == ""
    assert reader.take() == "one "
    assert run(reader, reader.find(MARKERS), "c <") == ""
    assert reader.take() == "<c "
    assert run(reader, reader.find(MARKERS)) == ""
    assert reader.take() == "<"


def test_a_beginning_of_a_marker_is_left_unread() -> None:
    reader = TextReader()
    reader.add("one <")
    assert run(reader, reader.find(MARKERS)) == ""
    assert reader.take() == "one "
    assert run(reader, reader.find(MARKERS), "b", ">{") == "<b>"
    assert run(reader, reader.skip("<b>"))
    assert run(reader, reader.find(MARKERS)) == "{"
    assert reader.take() == "<b>"


def test_what_is_not_there_is_not_skipped() -> None:
    reader = TextReader()
    assert not run(reader, reader.skip("<a>"), "<", "x")
    assert reader.read() == 0
    assert run(reader, reader.until(">"), "y>") == "<xy"
    reader.unread()
    assert run(reader, reader.peek()) == "<"


def test_what_was_read_is_counted_from_the_text_that_is_left() -> None:
    reader = TextReader()
    reader.add("ab  cd")
    assert run(reader, reader.until(" ")) == "ab"
    reader.take()
    assert run(reader, reader.space()) == "c"
    assert reader.read() == 2
    reader.add("e")
    assert run(reader, reader.until("e")) == "cd"
    assert reader.read_since(0) == "  cd"
    reader.read_all()
    assert not reader.is_over
    reader.ended = True
    assert reader.is_over


def long_value(reader: TextReader) -> tuple[str, str]:
    """Read a value in many pieces, after two characters; the copied text stays short."""
    reader.add('ab["')
    assert run(reader, reader.until("[")) == "ab"
    value = json_value(reader)
    next(value)
    pieces = [f"{number:04}" for number in range(5 * LONGEST_READ // 4)]
    for piece in pieces:
        reader.add(piece)
        next(value)
        assert len(reader.text) <= LONGEST_READ + 8
    written = f'["{"".join(pieces)}"]'
    assert run(reader, value, '"', "] c") == written
    assert reader.read() == len(written) + 2
    assert reader.read_since(len(written)) == '"]'
    assert reader.read_since(4) == written[2:]
    return "ab", written


def test_a_long_text_that_is_not_taken_is_not_copied_for_each_piece() -> None:
    reader = TextReader()
    before, written = long_value(reader)
    assert reader.take() == before + written
    assert run(reader, reader.peek()) == " "
    assert reader.take() == ""


def test_a_long_text_can_be_unread() -> None:
    reader = TextReader()
    before, written = long_value(reader)
    reader.unread()
    assert reader.read() == 0
    reader.add("d")
    assert reader.text == before + written + " cd"
    reader.read_all()
    assert reader.take() == before + written + " cd"
