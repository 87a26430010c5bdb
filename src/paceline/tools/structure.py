"""Constraints as plain data, for a grammar backend: JSON schemas and xgrammar's structural tags."""

from collections.abc import Sequence
from typing import Any, cast

from paceline.tools.definitions import Tool

# Whitespace characters in a row. A model that is held to JSON may write them without an end.
MOST_SPACE = 8

Format = dict[str, Any]


def tag(begin: str, tool: Tool, end: str) -> Format:
    """One call: its arguments, between two texts."""
    return {"type": "tag", "begin": begin, "content": document(dict(tool.schema)), "end": end}


def document(schema: Format) -> Format:
    """JSON that matches a schema."""
    return {"type": "json_schema", "json_schema": schema, "max_whitespace_cnt": MOST_SPACE}


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


def relocated(schema: Any, at: str) -> Any:
    """A schema for another place in a document: references to itself point to that place."""
    match schema:
        case dict():
            return {
                key: at + value.removeprefix("#")
                if key == "$ref" and isinstance(value, str) and value.startswith("#")
                else relocated(value, at)
                for key, value in cast(Format, schema).items()
            }
        case list():
            return [relocated(each, at) for each in cast(list[Any], schema)]
        case _:
            return schema
