"""Finds where a JSON value ends, in text that arrives in pieces."""

import re

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
