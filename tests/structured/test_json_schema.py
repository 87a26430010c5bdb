"""Closed objects, references and counts of keys."""

from typing import Any

import pytest

from paceline.core.errors import RequestError
from paceline.structured.json_schema import check_counts, closed, resolved, whole

LISTED = {"type": "object", "properties": {"a": {}}}
CLOSED = {**LISTED, "additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (True, True),
        ({"type": "object"}, {"type": "object"}),
        (LISTED, CLOSED),
        (CLOSED, CLOSED),
        ({**LISTED, "additionalProperties": True}, {**LISTED, "additionalProperties": True}),
        ({**LISTED, "unevaluatedProperties": True}, {**LISTED, "unevaluatedProperties": True}),
        ({"items": LISTED}, {"items": CLOSED}),
        ({"anyOf": [LISTED, {}]}, {"anyOf": [CLOSED, {}]}),
        (
            {"properties": {"a": LISTED}},
            {"properties": {"a": CLOSED}, "additionalProperties": False},
        ),
        (
            {"$ref": "#/$defs/x", "$defs": {"x": LISTED}},
            {"$ref": "#/$defs/x", "$defs": {"x": CLOSED}},
        ),
        ({"prefixItems": [LISTED]}, {"prefixItems": [CLOSED], "items": False}),
        ({"prefixItems": [{}], "items": {}}, {"prefixItems": [{}], "items": {}}),
        ({"allOf": [LISTED]}, {"allOf": [CLOSED]}),
        ({"allOf": [LISTED, {}]}, {"allOf": [LISTED, {}]}),
        ({**LISTED, "anyOf": [{}]}, {**LISTED, "anyOf": [{}]}),
        ({"const": LISTED}, {"const": LISTED}),  # a value, not a schema
    ],
)
def test_objects_that_list_their_properties_are_closed(schema: Any, expected: Any) -> None:
    assert closed(schema) == expected


def test_the_schema_itself_does_not_change() -> None:
    schema = {"items": {"properties": {}}}
    closed(schema)
    assert schema == {"items": {"properties": {}}}


def test_all_schemas_of_a_document() -> None:
    schema = {"properties": {"a": {"not": {"type": "null"}}}, "items": [True, {"title": "x"}]}
    assert len(list(whole(schema))) == 4


def test_references() -> None:
    root = {"$defs": {"a/b": {"x": 1}, "l": [{"y": 2}]}}
    assert resolved(root, "#") is root
    assert resolved(root, "#/$defs/a~1b/x") == 1
    assert resolved(root, "#/$defs/l/0") == {"y": 2}
    with pytest.raises(RequestError, match="points to nothing"):
        resolved(root, "#/$defs/l/1")


def test_repeated_keys_cannot_be_counted() -> None:
    with pytest.raises(RequestError, match="minProperties 2 needs as many required properties"):
        check_counts({"items": {"type": "object", "minProperties": 2}})
    check_counts({"minProperties": 1})
    check_counts({"minProperties": 2, "required": ["a", "b"]})
    check_counts({"minProperties": 2, "additionalProperties": False})
