from typing import TypeVar

from paceline.tools.text_reader import TextReader, Waiting

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
