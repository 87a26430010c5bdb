"""Llama 4 and others: `[look(q=1), get_weather(city="Zürich")]`, a list of calls in Python."""

from paceline.tools.parser import ToolParser
from paceline.tools.text_reader import TextReader, Waiting
from paceline.tools.written_arguments import json_string, python_value

START, END = "<|python_start|>", "<|python_end|>"
NAME_ENDS = " \n\t()[]{},=\"'"
CLOSING = {"(": ")", "[": "]", "{": "}"}


class PythonicParser(ToolParser):
    """Arguments have names. Each is passed on as JSON when its value is complete; a value that is
    no literal is passed on as a string."""

    def rules(self) -> Waiting[None]:
        while marker := (yield from self.content_until("[", START)):
            yield from self.reader.skip(marker)
            if marker == START:
                yield from self.reader.space()
                yield from self.reader.skip("[")
            follows = yield from self._begins()
            if follows is None:
                self.give_up()
                continue
            while follows is not None:
                follows = yield from self._call(*follows)
            if marker == START:
                yield from self.reader.space()
                yield from self.reader.skip(END)
                self.reader.take()

    def _begins(self) -> Waiting[tuple[str, str] | None]:
        """Read the name of a call, and of its first argument, if it has one."""
        reader = self.reader
        yield from reader.space()
        name = yield from reader.until(NAME_ENDS)
        if not name or not self._is_known(name) or not (yield from reader.skip("(")):
            return None
        if (yield from reader.space()) == ")":
            return name, ""
        key = yield from self._key()
        return None if key is None else (name, key)

    def _key(self) -> Waiting[str | None]:
        yield from self.reader.space()
        key = yield from self.reader.until(NAME_ENDS)
        yield from self.reader.space()
        return key if key.isidentifier() and (yield from self.reader.skip("=")) else None

    def _call(self, name: str, first: str) -> Waiting[tuple[str, str] | None]:
        """Read the arguments of a call. Returns the beginning of the next one, if there is one."""
        reader, key = self.reader, first or None
        reader.take()
        self.begin(name)
        arguments = self.written_arguments(name)
        while key is not None:
            value = yield from python_extent(reader)
            if value is None:
                reader.read_all()
                reader.take()
                return None
            arguments.key(key)
            self.arguments(python_value(value) or json_string(value.strip()))
            reader.take()
            if not (yield from reader.skip(",")):
                break
            key = yield from self._key()
        arguments.close()
        yield from reader.space()
        yield from reader.skip(")")
        yield from reader.space()
        reader.take()
        if (yield from reader.skip(",")):
            following = yield from self._begins()
            if following is None:
                self.give_up()
            return following
        yield from reader.skip("]")
        reader.take()
        return None


def python_extent(reader: TextReader) -> Waiting[str | None]:
    """Read a value up to the comma or the bracket behind it; None if the text ends before."""
    begin, open_brackets, quote = reader.read(), "", ""
    while character := (yield from reader.peek()):
        if quote:
            if character == "\\":
                reader.at += 1
                yield from reader.peek()
            elif character == quote:
                quote = ""
        elif character in "\"'":
            quote = character
        elif character in CLOSING:
            open_brackets += CLOSING[character]
        elif open_brackets and character == open_brackets[-1]:
            open_brackets = open_brackets[:-1]
        elif not open_brackets and character in ",)":
            return reader.read_since(begin)
        reader.at += 1
    return None
