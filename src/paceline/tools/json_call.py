"""Reads one tool call that is written as a JSON object."""

import json
import re
from collections.abc import Callable
from typing import Protocol

from paceline.tools.text_reader import TextReader, Waiting

IN_STRING = re.compile(r'["\\]')
BETWEEN = re.compile(r'["{}\[\]]')


class JsonExtent:
    """Follows strings and brackets from the first character of a string, an object or an array.

    Everything else is left to the parser of the value. Brackets are counted, not paired: a
    malformed value has an end too.
    """

    def __init__(self) -> None:
        self.closed = False
        self._depth = 0
        self._in_string = False
        self._after_backslash = False

    def end(self, text: str, at: int) -> int:
        """Where the value ends in `text`, which continues at `at`; its length while it goes on."""
        while at < len(text) and not self.closed:
            at = self._string(text, at) if self._in_string else self._value(text, at)
        return at

    def _string(self, text: str, at: int) -> int:
        if self._after_backslash:
            self._after_backslash = False
            return at + 1
        if (found := IN_STRING.search(text, at)) is None:
            return len(text)
        if found[0] == "\\":
            self._after_backslash = True
        else:
            self._in_string = False
            self.closed = self._depth == 0
        return found.end()

    def _value(self, text: str, at: int) -> int:
        if (found := BETWEEN.search(text, at)) is None:
            return len(text)
        if found[0] == '"':
            self._in_string = True
        else:
            self._depth += 1 if found[0] in "{[" else -1
            self.closed = self._depth == 0
        return found.end()


def json_value(reader: TextReader) -> Waiting[str | None]:
    """Read a string, an object or an array; None if the text ends before it does."""
    begin, extent = reader.read(), JsonExtent()
    while True:
        reader.at = extent.end(reader.text, reader.at)
        if extent.closed:
            return reader.read_since(begin)
        if reader.ended:
            return None
        yield


ARGUMENTS = ("arguments", "parameters")
USUAL = ("id", "type")  # further keys that models write
LITERAL_ENDS = ",}] \t\r\n"


class CallSink(Protocol):
    """Receives a call as it is read."""

    def begin(self, name: str, id: str | None = None) -> None: ...

    def arguments(self, text: str) -> None: ...


class JsonCall:
    """`{"name": "look", "arguments": {"q": 1}}`, with the keys in any order.

    The call begins when its name and the first character of its arguments are known. What was read
    until then is markup. If it never begins, the reader still has all of it.
    """

    def __init__(
        self, reader: TextReader, sink: CallSink, is_known: Callable[[str], bool], is_bare: bool
    ) -> None:
        self._reader = reader
        self._sink = sink
        self._is_known = is_known
        self._is_bare = is_bare  # no marker says that it is a call, so it must look like one
        self._name: str | None = None
        self._held: str | None = None  # arguments that stand before the name
        self._begun = False

    def read(self) -> Waiting[bool]:
        """Read an object from its brace on. Is it a call?

        If a call is malformed behind its arguments, the text after them is left unread.
        """
        reader = self._reader
        reader.at += 1
        separator = ","
        while separator == ",":
            if (yield from reader.space()) != "}" and not (yield from self._member()):
                return self._malformed()
            separator = yield from reader.space()
            if separator not in ("}", ","):
                return self._malformed()
            reader.at += 1
        return self._closed()

    def _malformed(self) -> bool:
        if self._begun and not self._reader.is_over:
            self._reader.unread()
        return self._begun

    def _closed(self) -> bool:
        if self._begun:
            return True
        if self._name is None or (self._is_bare and self._held is None):
            return False
        self._begin(self._name, self._held or "{}")
        return True

    def _begin(self, name: str, arguments: str = "") -> None:
        self._begun = True
        self._reader.take()
        self._sink.begin(name)
        if arguments:
            self._sink.arguments(arguments)

    def _member(self) -> Waiting[bool]:
        """Read a key and its value. False: this is not a call, or no JSON."""
        key = yield from self._string()
        if key is None or (yield from self._reader.space()) != ":":
            return False
        self._reader.at += 1
        first = yield from self._reader.space()
        if key == "name" and self._name is None:
            return (yield from self._read_name())
        if key in ARGUMENTS and not self._begun and self._held is None:
            return (yield from self._read_arguments(first))
        if self._is_bare and not self._begun and key not in USUAL:
            return False
        return (yield from self._other(first))

    def _read_name(self) -> Waiting[bool]:
        name = yield from self._string()
        if not name or not self._is_known(name):
            return False
        self._name = name
        if self._held is not None:
            self._begin(name, self._held)
        return True

    def _read_arguments(self, first: str) -> Waiting[bool]:
        if first == "{" and self._name is not None:
            self._begin(self._name)
            yield from stream_object(self._reader, self._sink)
            return True
        if first == "{":
            held = yield from json_value(self._reader)
        elif first == '"':
            held = object_in((yield from self._string()))
        else:
            held = object_in((yield from self._reader.until(LITERAL_ENDS)))
        if held is None:
            return False
        if self._name is None:
            self._held = held
        else:
            self._begin(self._name, held)
        return True

    def _other(self, first: str) -> Waiting[bool]:
        if first and first in '"{[':
            return (yield from json_value(self._reader)) is not None
        return bool((yield from self._reader.until(LITERAL_ENDS)))

    def _string(self) -> Waiting[str | None]:
        if (yield from self._reader.peek()) != '"':
            return None
        written = yield from json_value(self._reader)
        try:
            return None if written is None else json.loads(written, strict=False)
        except ValueError:
            return None


def object_in(written: str | None) -> str | None:
    """Arguments that are not an object: models also write them as a string, and null for none."""
    if written is None or written.lstrip().startswith("{"):
        return written
    return "{}" if written.strip() in ("", "null") else None


def stream_object(reader: TextReader, sink: CallSink) -> Waiting[None]:
    """Pass an object on as it arrives."""
    extent = JsonExtent()
    while True:
        reader.at = extent.end(reader.text, reader.at)
        if text := reader.take():
            sink.arguments(text)
        if extent.closed or reader.ended:
            return
        yield
