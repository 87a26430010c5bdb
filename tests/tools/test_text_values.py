"""Values that models write as text."""

from typing import Any

import pytest

from paceline.tools.written_arguments import (
    is_text,
    json_of,
    property_types,
    python_value,
    types_of,
)

ROOT = {
    "properties": {
        "s": {"type": "string"},
        "n": {"$ref": "#/$defs/number"},
        "circle": {"$ref": "#/properties/circle"},
        "lost": {"$ref": "#/$defs/nothing/there"},
    },
    "$defs": {"number": {"anyOf": [{"type": "integer"}, {"type": "null"}]}},
}


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        (True, set()),
        ({}, set()),
        ({"type": "string"}, {"string"}),
        ({"type": ["string", "null"]}, {"string", "null"}),
        ({"enum": ["a", 1, None]}, {"string", "integer", "null"}),
        ({"const": 0.5}, {"number"}),
        ({"oneOf": [{"type": "object"}, {"const": "a"}]}, {"object", "string"}),
    ],
)
def test_the_types_of_a_schema(schema: Any, types: set[str]) -> None:
    assert types_of(schema, {}) == types


def test_references_are_followed() -> None:
    assert property_types(ROOT, "n") == {"integer", "null"}
    assert property_types(ROOT, "s") == {"string"}
    for name in ("circle", "lost", "unknown"):
        assert property_types(ROOT, name) == frozenset()
        assert is_text(property_types(ROOT, name))
    assert property_types({}, "s") == frozenset()
    assert not is_text(frozenset({"string", "null"}))


@pytest.mark.parametrize(
    ("text", "types", "written"),
    [
        ("3", {"integer"}, "3"),
        (" 3 ", {"number"}, "3"),
        ("3", {"string", "null"}, '"3"'),
        ("null", {"string", "null"}, "null"),
        ("3", {"string", "number"}, "3"),
        ("True", {"boolean"}, "true"),
        ("None", {"null", "string"}, "null"),
        ("{'a': [1, 'b']}", {"object"}, '{"a": [1, "b"]}'),
        ('{"a": 1}', {"object"}, '{"a": 1}'),
        ("3.5", {"integer"}, "3.5"),  # the model's mistake is passed on
        ("three", {"integer"}, '"three"'),
        ("NaN", {"number"}, '"NaN"'),
        ("1" * 5000, {"integer"}, f'"{"1" * 5000}"'),
        ("[" * 5000, {"array"}, f'"{"[" * 5000}"'),
        ("{1}", {"object"}, '"{1}"'),
    ],
)
def test_a_text_becomes_the_value_that_its_types_allow(
    text: str, types: set[str], written: str
) -> None:
    assert json_of(text, frozenset(types)) == written


def test_literals_of_python_become_json() -> None:
    assert python_value(" {'ü': (1, None)} ") == '{"ü": [1, null]}'
    for text in ("f()", "1e999", "{1, 2}", "b'a'", "(", ""):
        assert python_value(text) is None
