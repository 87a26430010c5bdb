"""Writes the arguments of a call as JSON, where the model writes them in another form."""

import ast
import json
from collections.abc import Callable, Mapping
from typing import Any, cast

from paceline.tools.text_reader import TextReader, Waiting

Schema = Mapping[str, Any]

COMBINING = ("anyOf", "oneOf", "allOf")
MOST_REFERENCES = 8  # in a row; more are a circle
TYPES = {
    type(None): "null",
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
}


def types_of(schema: object, root: Schema, references: int = MOST_REFERENCES) -> frozenset[str]:
    """The JSON types that a schema names; none if it does not say."""
    if not isinstance(schema, dict):
        return frozenset()
    fields = cast(dict[str, Any], schema)
    found: set[str] = set()
    if isinstance(kind := fields.get("type"), str):
        found.add(kind)
    elif isinstance(kind, list):
        found.update(each for each in cast(list[object], kind) if isinstance(each, str))
    values = [fields["const"]] if "const" in fields else fields.get("enum")
    if isinstance(values, list):
        found.update(TYPES[type(each)] for each in cast(list[Any], values) if type(each) in TYPES)
    for name in COMBINING:
        parts = fields.get(name)
        for part in cast(list[object], parts) if isinstance(parts, list) else ():
            found |= types_of(part, root, references)
    if isinstance(reference := fields.get("$ref"), str) and references:
        found |= types_of(target_of(reference, root), root, references - 1)
    return frozenset(found)


def target_of(reference: str, root: Schema) -> object:
    """What a reference inside the same schema points to; None if it points to nothing."""
    found: Any = root
    for step in reference.removeprefix("#").split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        found = cast(Schema, found).get(key) if isinstance(found, dict) else None
    return found


def is_text(types: frozenset[str]) -> bool:
    """Whether a value of these types is a string, whatever it looks like."""
    return types <= {"string"}


def json_of(text: str, types: frozenset[str]) -> str:
    """A value that was written as text, as JSON: a number or an object, if it may be one."""
    for read in (json_text, python_value):
        written = read(text)
        if written is None:
            continue
        kind = TYPES[type(json.loads(written))]
        kinds = (kind, "number") if kind == "integer" else (kind,)
        if "string" not in types or not types.isdisjoint(kinds):
            return written
    return json_string(text)


def json_text(text: str) -> str | None:
    """The text itself, if it is JSON."""
    try:
        json.loads(text, parse_constant=refuse)
    except (ValueError, RecursionError):
        return None
    return text.strip()


def python_value(text: str) -> str | None:
    """A literal of Python, as JSON."""
    try:
        value = ast.literal_eval(text.strip())
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return None


def json_string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def property_types(schema: Schema, name: str) -> frozenset[str]:
    """The types of a property of an object."""
    properties = schema.get("properties")
    found = cast(Schema, properties).get(name) if isinstance(properties, dict) else None
    return types_of(found, schema)


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
