"""Constraints as plain data, for a grammar backend: JSON schemas and xgrammar's structural tags."""

from collections.abc import Sequence
from typing import Any, cast

from paceline.tools.calls import Tool

# Whitespace characters in a row. A model that is held to JSON may write them without an end.
MOST_SPACE = 8

NAMED_PARTS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
VALUES = ("const", "enum", "default", "example", "examples")  # keywords whose values are data

# Keywords that the grammars of neither library hold.
UNHELD = {
    *("not", "if", "then", "else", "contains", "minContains", "maxContains", "uniqueItems"),
    *("propertyNames", "unevaluatedProperties", "unevaluatedItems"),
    *("dependencies", "dependentRequired", "dependentSchemas", "$dynamicRef", "$id"),
}
RENAMED = {"oneOf": "anyOf"}  # a grammar cannot forbid that two of them match

Format = dict[str, Any]


def tag(begin: str, tool: Tool, end: str, *, style: str = "json") -> Format:
    """One call: its arguments, between two texts. They are JSON, or in another style of
    xgrammar."""
    content = document(dict(tool.schema))
    if style != "json":
        content["style"] = style
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def document(schema: Format) -> Format:
    """JSON that matches a schema."""
    return {"type": "json_schema", "json_schema": schema, "max_whitespace_cnt": MOST_SPACE}


def either(*formats: Format) -> Format:
    return {"type": "or", "elements": list(formats)}


def triggered(trigger: str, tags: Sequence[Format], *, parallel: bool) -> Format:
    """Any text, in which the trigger begins one of the tags."""
    return {
        "type": "triggered_tags",
        "triggers": [trigger],
        "tags": list(tags),
        "at_least_one": False,
        "stop_after_first": not parallel,
    }


def separated(separator: str, tags: Sequence[Format], *, parallel: bool) -> Format:
    """One tag or more, and nothing else."""
    return {
        "type": "tags_with_separator",
        "tags": list(tags),
        "separator": separator,
        "at_least_one": True,
        "stop_after_first": not parallel,
    }


def calls_of(
    trigger: str, separator: str, tags: Sequence[Format], *, required: bool, parallel: bool
) -> Format:
    """Calls and nothing else if one is required, otherwise any text and calls in it."""
    if required:
        return separated(separator, tags, parallel=parallel)
    return triggered(trigger, tags, parallel=parallel)


def structural_tag(format: Format) -> Format:
    return {"type": "structural_tag", "format": format}


def schema_format(name: str, schema: Format) -> Format:
    """A `response_format` that holds the whole reply to a schema."""
    held = {"name": name, "schema": schema, "strict": True}
    return {"type": "json_schema", "json_schema": held}


def calls_schema(tools: Sequence[Tool], *, parallel: bool) -> Format:
    """An array of calls: `[{"name": …, "parameters": …}, …]`."""
    places = {tool.name: f"#/$defs/{tool.name}" for tool in tools}
    calls = [
        {
            "type": "object",
            "properties": {"name": {"const": name}, "parameters": {"$ref": place}},
            "required": ["name", "parameters"],
            "additionalProperties": False,
        }
        for name, place in places.items()
    ]
    schema: Format = {
        "type": "array",
        "minItems": 1,
        "items": {"anyOf": calls},
        "$defs": {tool.name: relocated(tool.schema, places[tool.name]) for tool in tools},
    }
    return schema if parallel else {**schema, "maxItems": 1}


def holdable(schema: Any) -> Any:
    """A schema without the keywords that no grammar holds, so that it allows more."""
    match schema:
        case dict():
            fields = cast(Format, schema)
            kept = {key: value for key, value in fields.items() if not is_unheld(key, value)}
            return {RENAMED.get(key, key): holdable_field(key, one) for key, one in kept.items()}
        case list():
            return [holdable(each) for each in cast(list[Any], schema)]
        case _:
            return schema


def is_unheld(key: str, value: Any) -> bool:
    is_elsewhere = key == "$ref" and isinstance(value, str) and not value.startswith("#")
    return key in UNHELD or is_elsewhere


def holdable_field(key: str, value: Any) -> Any:
    if key in NAMED_PARTS and isinstance(value, dict):
        return {name: holdable(part) for name, part in cast(Format, value).items()}
    return value if key in VALUES else holdable(value)


def relocated(schema: Any, at: str) -> Any:
    """A schema for another place in a document: references to itself point to that place."""
    match schema:
        case dict():
            fields = cast(Format, schema)
            return {key: relocated_field(key, value, at) for key, value in fields.items()}
        case list():
            return [relocated(each, at) for each in cast(list[Any], schema)]
        case _:
            return schema


def relocated_field(key: str, value: Any, at: str) -> Any:
    """The value of one keyword of a schema."""
    if key == "$ref" and isinstance(value, str) and value.startswith("#"):
        return at + value.removeprefix("#")
    if key in NAMED_PARTS and isinstance(value, dict):
        return {name: relocated(part, at) for name, part in cast(Format, value).items()}
    return value if key in VALUES else relocated(value, at)
