"""Schemas, regular expressions and choices that both backends hold exactly."""

import json
import re
from random import Random
from typing import Any

import pytest

from paceline.core.constraint import Constraint
from paceline.core.errors import RequestError
from paceline.structured.backend import BACKENDS
from paceline.structured.exact_schema import check_exact, exact_regex
from tests.structured.support import accepts, backend, every_backend, text_of, walk

TREE = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {
            "type": "object",
            "properties": {"sub": {"type": "array", "items": {"$ref": "#/$defs/node"}}},
        }
    },
}
TAGGED = {
    "oneOf": [
        {
            "type": "object",
            "properties": {"kind": {"const": "a"}, "x": {"type": "integer"}},
            "required": ["kind", "x"],
        },
        {"$ref": "#/$defs/b"},
    ],
    "$defs": {
        "b": {"type": "object", "properties": {"kind": {"enum": ["b"]}}, "required": ["kind"]}
    },
}

# A schema, values that are valid and values that are not. The first letters of the backends that
# support it follow; at least one does.
KEYWORDS: list[tuple[Any, list[Any], list[Any], str]] = [
    (True, [1, "a", None, [1, {"a": []}]], [], "xl"),
    ({"title": "anything", "default": 3, "x-other": 1}, [1, {"a": True}], [], "xl"),
    ({"type": "string"}, ["", "a", 'é"\n\\'], [1, None], "xl"),
    ({"type": "integer"}, [0, 17, -3], [1.5, "1", True], "xl"),
    ({"type": "number"}, [0, -1.5, 1e20], ["1"], "xl"),
    ({"type": "boolean"}, [True, False], [0, None], "xl"),
    ({"type": "null"}, [None], [False, 0], "xl"),
    ({"type": ["string", "null"]}, ["a", None], [1], "xl"),
    ({"type": ["integer", "null"], "minimum": 3}, [3, None], [2, "a"], "xl"),
    ({"enum": [1, "two", None, [3]]}, [1, "two", None, [3]], [2, "three", []], "xl"),
    ({"type": "string", "enum": ["a"]}, ["a"], ["b"], "xl"),
    ({"type": "string", "enum": ["a", 1]}, ["a"], [1], "l"),
    ({"const": {"a": 1}}, [{"a": 1}], [{"a": 2}, {}], "xl"),
    ({"type": "integer", "minimum": -2, "maximum": 11}, [-2, 0, 11], [-3, 12], "xl"),
    ({"type": "integer", "exclusiveMinimum": 0}, [1, 100], [0, -1], "xl"),
    ({"type": "number", "minimum": 1.5, "exclusiveMaximum": 3}, [1.5, 2.75], [1.25, 3, 3.5], "xl"),
    ({"minimum": 3}, [3, "a"], [2], "l"),
    ({"type": "integer", "multipleOf": 3}, [0, 9, -3], [1, 10], "xl"),
    ({"type": "integer", "multipleOf": 3, "minimum": 4}, [6], [3, 7], "l"),
    ({"type": "string", "minLength": 2, "maxLength": 3}, ["ab", 'a"b', "éé\n"], ["a", "abcd"], "l"),
    ({"type": "string", "pattern": "^a[0-9]{2}$"}, ["a12"], ["a1", "xa12"], "xl"),
    ({"type": "string", "pattern": "^a\\.b$"}, ["a.b"], ["acb"], "xl"),
    ({"type": "string", "pattern": "b"}, ["abc", "b"], ["ac"], "l"),
    ({"type": "string", "pattern": "^[^a]$"}, ["b", '"', "\n"], ["a", "bb"], "l"),
    ({"type": "string", "pattern": "^a$|b"}, ["a", "xb"], ["xa"], "l"),
    ({"type": "string", "pattern": "^(a|b)+$", "maxLength": 2}, ["ab"], ["aba"], "l"),
    ({"type": "string", "format": "date"}, ["2026-11-17"], ["17.11.2026", "2026-13-01"], "xl"),
    ({"type": "string", "format": "uuid"}, ["123e4567-e89b-12d3-a456-426614174000"], ["1"], "xl"),
    ({"type": "string", "format": "an annotation"}, ["anything"], [1], "xl"),
    ({"type": "array", "items": {"type": "integer"}}, [[], [1, 2]], [["a"], 1], "xl"),
    ({"type": "array", "minItems": 1, "maxItems": 2}, [[1], [1, "a"]], [[], [1, 2, 3]], "xl"),
    (
        {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}]},
        [[1, "a"], [1]],
        [["a"], [1, "a", 2]],  # closed: there are no further items
        "xl",
    ),
    (
        {"type": "array", "prefixItems": [{"type": "null"}], "items": {"type": "integer"}},
        [[None, 1, 2]],
        [[None, "a"]],
        "xl",
    ),
    ({"type": "object"}, [{}, {"a": 1}], [[]], "xl"),
    (
        {"type": "object", "properties": {"a": {"type": "integer"}, "b": {}}, "required": ["a"]},
        [{"a": 1}, {"a": 1, "b": []}],
        [{}, {"b": 1}, {"a": "x"}, {"a": 1, "c": 1}],  # closed: there are no further keys
        "xl",
    ),
    ({"properties": {"a": {"type": "integer"}}}, [{"a": 1}, {}], [{"a": "x"}], "xl"),
    (
        {"type": "object", "properties": {"a": {"type": "null"}}, "additionalProperties": True},
        [{"a": None, "b": 1}],
        [{"a": 1}],
        "xl",
    ),
    (
        {"type": "object", "additionalProperties": {"type": "integer"}},
        [{}, {"x": 1, "y": 2}],
        [{"x": "a"}],
        "xl",
    ),
    (
        {"type": "object", "patternProperties": {"^a+$": {"type": "integer"}}},
        [{"aa": 1}],
        [{"a": "x"}, {"b": 1}],
        "xl",
    ),
    (
        {"type": "object", "propertyNames": {"type": "string", "pattern": "^a$"}},
        [{"a": 1}],
        [{"b": 1}],
        "x",
    ),
    ({"type": "object", "required": ["x"]}, [{"x": 1}], [{}, {"y": 1}], "l"),
    ({"type": "object", "minProperties": 1}, [{"x": 1}], [{}], "xl"),
    ({"type": "object", "maxProperties": 1}, [{}, {"x": 1}], [{"x": 1, "y": 2}], "xl"),
    ({"anyOf": [{"type": "string"}, {"type": "null"}]}, ["a", None], [1], "xl"),
    ({"type": "string", "anyOf": [{"const": "a"}, {"const": 1}]}, ["a"], [1], "l"),
    ({"oneOf": [{"type": "integer"}, {"type": "string"}]}, [1, "a"], [None], "xl"),
    (TAGGED, [{"kind": "a", "x": 1}, {"kind": "b"}], [{"kind": "a"}, {"kind": "c"}], "x"),
    ({"allOf": [{"type": "string"}], "title": "T"}, ["a"], [1], "xl"),
    ({"allOf": [{"type": "integer"}, {"minimum": 3}]}, [3], [2, "a"], "l"),
    (
        {
            "allOf": [
                {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
                {"properties": {"b": {"type": "string"}}, "required": ["b"]},
            ]
        },
        [{"a": 1, "b": "x"}],
        [{"a": 1}, {"b": "x"}, {"a": 1, "b": 2}],
        "l",
    ),
    (TREE, [{}, {"sub": [{"sub": []}, {}]}], [{"sub": [1]}, {"x": 1}], "xl"),
    ({"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"type": "null"}}}, [None], [1], "l"),
    (
        {"type": "array", "uniqueItems": False, "items": {"type": "null"}},
        [[None, None]],
        [[1]],
        "xl",
    ),
]


def written(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


@pytest.mark.parametrize(
    ("schema", "valid", "invalid", "supported"), KEYWORDS, ids=[str(k[0])[:60] for k in KEYWORDS]
)
def test_keywords(schema: Any, valid: list[Any], invalid: list[Any], supported: str) -> None:
    for name in BACKENDS:
        constraint = Constraint.json(schema)
        if name[0] not in supported:
            with pytest.raises(RequestError):
                backend(name).compile(constraint)
            continue
        grammar = backend(name).compile(constraint)
        for value in valid:
            assert accepts(grammar, written(value)), (name, value)
        for value in invalid:
            assert not accepts(grammar, written(value)), (name, value)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": "array", "uniqueItems": True}, "at #: uniqueItems beside type"),
        ({"properties": {"a": {"not": {}}}}, "at #/properties/a: not"),
        ({"items": {"type": "string", "minLength": 1}}, "at #/items: minLength beside type"),
        ({"if": True}, "at #: if"),
        ({"$ref": "#/$defs/x"}, "'#/\\$defs/x' points to nothing"),
        ({"$ref": "other.json"}, "'other.json' is not supported: use a path that starts with #/"),
        ({"$ref": "#", "type": "object"}, "at #: type beside \\$ref"),
        ({"type": "text"}, "at #: type without a known type"),
        ({"minimum": 3}, "at #: minimum without a known type"),
        ({"type": "array", "minItems": "1"}, "minItems that is not an integer"),
        ({"type": "number", "maximum": 1e-9}, "maximum 1e-09"),
        ({"type": "integer", "minimum": 1.5}, "minimum 1.5"),
        ({"type": "string", "pattern": "a$b"}, r"\$ that is not at the end, at position 1"),
        ({"type": "string", "pattern": "^a\\nb$"}, "characters that JSON may escape"),
        ({"type": "string", "pattern": 3}, "the regex must be a string"),
        ({"enum": []}, "enum that is not a list of values"),
        ({"anyOf": []}, "anyOf that is not a list of schemas"),
        ({"anyOf": [{"type": "null"}, False]}, "at #/anyOf/1: a schema that is false"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "branches may overlap"),
        ({"oneOf": [{"enum": [1, 2]}, {"const": 1.0}]}, "branches may overlap"),
        ({"type": "object", "required": ["a"]}, "required names that are not in properties"),
        ({"type": "object", "properties": []}, "properties that is not an object"),
        (
            {"type": "object", "patternProperties": {"^a$": {}, "^b$": {}}},
            "several patternProperties",
        ),
        ({"properties": {"a": {"$id": "x", "type": "null"}}}, "\\$id inside the schema"),
    ],
)
def test_what_xgrammar_does_not_hold_is_refused_with_its_place(schema: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        check_exact(schema)


def test_definitions_that_nothing_refers_to_do_not_matter() -> None:
    check_exact({"type": "null", "$defs": {"x": {"not": {}}}})


PATTERNS = [
    "a|b|c",
    "(ab?|cd)*e",
    r"\d{3}-\d{4}",
    r"[A-Z][a-z]{0,5}( [A-Z][a-z]{0,5})?",
    r"[^\n]*",
    "h.llo",
    r"^\s*x\.y$",
    "^a$|^b+$",
    r"[\w-]+@[\w-]+\.(com|org)",
    "é+[à-ü]?",
    r"\(\[\{\}\]\)\\/\"'",
    "(a|a|aa)*b",
    "(?:x|yz){2,3}",
    "a*?b+?",
    r"\u00e9|\x41",
]
PROBES = [
    "",
    "a",
    "b",
    "bb",
    "abe",
    "e",
    "hello",
    "h\nllo",
    "555-1234",
    "x.y",
    " \tx.y",
    "xy",
    "é",
    "éü",
    "A",
]


@every_backend
@pytest.mark.parametrize("pattern", PATTERNS)
def test_random_texts_match(name: str, pattern: str) -> None:
    grammar = backend(name).compile(Constraint.regex(pattern))
    for seed in range(3):
        tokens = walk(grammar.matcher(), Random(seed), free=8 * seed, limit=60)
        if tokens is not None:
            assert re.fullmatch(pattern, text_of(tokens)), text_of(tokens)
    for text in PROBES:
        assert accepts(grammar, text) == bool(re.fullmatch(pattern, text)), text


@every_backend
def test_choices(name: str) -> None:
    choices = ["yes", "no", "no, thanks", 'a "quoted"\n\\ text', "naïve 你好 😀", "\x01\x7f"]
    grammar = backend(name).compile(Constraint.choice(choices))
    found = {text_of(walk(grammar.matcher(), Random(seed)) or []) for seed in range(40)}
    assert found == set(choices)
    for text in ["", "ye", "yes ", "no,", "NO"]:
        assert not accepts(grammar, text)


@pytest.mark.parametrize(
    ("pattern", "position"),
    [("a^", 1), ("a$b", 1), ("(a$)b", 2), ("(^a)", 1), (r"\Aa", 0), (r"a\b", 1), (r"x\1", 1)],
)
def test_what_xgrammar_reads_differently_is_refused_with_its_place(
    pattern: str, position: int
) -> None:
    with pytest.raises(RequestError, match=f"at position {position} of the regex"):
        exact_regex(pattern)


def test_a_dot_is_no_line_break() -> None:
    assert exact_regex(r"a.[.]\.") == r"a[^\n][.]\."


@every_backend
@pytest.mark.parametrize("pattern", ["a(b", "[z-a]", "(?=x)a", r"(a)\1"])
def test_a_regex_that_does_not_compile_says_where(name: str, pattern: str) -> None:
    with pytest.raises(RequestError, match=r"position|column|\d\(\d+\)"):
        backend(name).compile(Constraint.regex(pattern))
