"""Writes the arguments of a call as JSON, where the model writes them in another form."""

from collections.abc import Callable

from paceline.tools.text_reader import TextReader, Waiting
from paceline.tools.text_values import Schema, is_text, json_of, json_string, property_types


class WrittenArguments:
    """One object, key by key. The schema of the tool says which values are strings: these are
    passed on as they arrive, others when they are complete."""

    def __init__(self, emit: Callable[[str], None], schema: Schema) -> None:
        self._emit, self._schema = emit, schema
        self._keys = 0

    def key(self, name: str) -> None:
        self._emit(f"{', ' if self._keys else '{'}{json_string(name)}: ")
        self._keys += 1

    def close(self) -> None:
        self._emit("}" if self._keys else "{}")

    def value_until(self, reader: TextReader, name: str, end: str) -> Waiting[bool]:
        """Read a key's value up to the marker `end`; False if the text ends before it.

        One line break at either side belongs to the markers.
        """
        types = property_types(self._schema, name)
        if is_text(types):
            self.key(name)
            return (yield from self._string(reader, end))
        text = ""
        while True:
            found = yield from reader.find((end,))
            text += reader.take()
            if found:
                break
            if reader.ended:
                return False
        self.key(name)
        self._emit(json_of(without_breaks(text), types))
        return True

    def _string(self, reader: TextReader, end: str) -> Waiting[bool]:
        self._emit('"')
        yield from reader.skip("\n")
        reader.take()
        held = ""  # a line break that belongs to the end, if that follows
        while True:
            found = yield from reader.find((end,))
            text = held + reader.take()
            held = "\n" if text.endswith("\n") and not reader.is_over else ""
            if words := text.removesuffix(held):
                self._emit(json_string(words)[1:-1])
            if found:
                self._emit('"')
                return True
            if reader.ended:
                return False


def without_breaks(text: str) -> str:
    return text.removeprefix("\n").removesuffix("\n")
