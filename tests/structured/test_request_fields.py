"""From the fields of OpenAI's and vLLM's requests to constraints."""

from typing import Any

import pytest

from paceline.core.constraint import Constraint
from paceline.core.errors import RequestError
from paceline.structured.request_fields import constraint_of

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"response_format": None, "structured_outputs": None, "guided_json": None}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, Constraint.json_object()),
        (
            {"response_format": {"type": "json_object", "schema": SCHEMA}},
            Constraint.json(SCHEMA),
        ),
        (
            {"text": {"format": {"type": "json_object", "schema": SCHEMA}}},
            Constraint.json(SCHEMA),
        ),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": SCHEMA, "strict": True},
                }
            },
            Constraint.json(SCHEMA),
        ),
        (
            {
                "response_format": {
                    "type": "structural_tag",
                    "structures": [{"begin": "<", "schema": SCHEMA, "end": ">"}],
                    "triggers": ["<"],
                }
            },
            Constraint.structural_tag(
                {
                    "structures": [{"begin": "<", "schema": SCHEMA, "end": ">"}],
                    "triggers": ["<"],
                }
            ),
        ),
        ({"text": {"verbosity": "medium"}}, None),
        ({"text": {"format": {"type": "text"}}}, None),
        ({"text": {"format": {"type": "json_object"}}}, Constraint.json_object()),
        (
            {"text": {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}}},
            Constraint.json(SCHEMA),
        ),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
            Constraint.json(SCHEMA),
        ),
        ({"output_config": {"effort": "low"}, "output_format": None}, None),
        ({"output_format": {"type": "json_schema", "schema": SCHEMA}}, Constraint.json(SCHEMA)),
        ({"structured_outputs": {"json": SCHEMA}}, Constraint.json(SCHEMA)),
        ({"structured_outputs": {"json": '{"type":"null"}'}}, Constraint.json({"type": "null"})),
        (
            {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}},
            Constraint.json(SCHEMA, any_whitespace=False),
        ),
        ({"structured_outputs": {"json_object": True, "regex": None}}, Constraint.json_object()),
        ({"structured_outputs": {"regex": "a+", "json_object": False}}, Constraint.regex("a+")),
        ({"structured_outputs": {"choice": ["a", "b"]}}, Constraint.choice(["a", "b"])),
        ({"structured_outputs": {"grammar": 'root ::= "a"'}}, Constraint.grammar('root ::= "a"')),
        ({"guided_json": SCHEMA}, Constraint.json(SCHEMA)),
        ({"guided_regex": "a+"}, Constraint.regex("a+")),
        ({"guided_choice": ["a"]}, Constraint.choice(["a"])),
        ({"guided_grammar": "start: A"}, Constraint.grammar("start: A")),
    ],
)
def test_the_constraint_of_a_request(fields: dict[str, Any], expected: Constraint | None) -> None:
    assert constraint_of(fields) == expected


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"response_format": "json"}, "response_format must be an object"),
        ({"response_format": {"type": "yaml"}}, "has the type 'yaml'; there are text, json_object"),
        ({"response_format": {"type": "json_schema"}}, "json_schema must be an object"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "has no schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"strict": 1}}},
            "strict must be a boolean",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": 1}}},
            "name must be a string",
        ),
        ({"text": "json"}, "text must be an object"),
        ({"text": {"format": {"type": "yaml"}}}, "text.format has the type 'yaml'; there are text"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format has no schema"),
        ({"output_format": {"type": "json_schema", "strict": 1}}, "output_format.strict must be"),
        ({"structured_outputs": {}}, "needs one of json, json_object, .* not none"),
        ({"structured_outputs": {"json": SCHEMA, "regex": "a"}}, "not json and regex"),
        ({"structured_outputs": {"jsn": SCHEMA}}, "has no field jsn"),
        ({"structured_outputs": {"json": {}, "whitespace_pattern": " "}}, "whitespace_pattern"),
        ({"guided_json": SCHEMA, "guided_regex": "a"}, "not guided_json and guided_regex"),
        (
            {"response_format": {"type": "json_object"}, "guided_choice": ["a"]},
            "a request has one constraint, not response_format and guided_choice",
        ),
    ],
)
def test_malformed_fields_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        constraint_of(fields)
