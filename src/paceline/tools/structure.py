"""Constraints as plain data, for a grammar backend: JSON schemas and xgrammar's structural tags."""

from collections.abc import Callable, Sequence
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
Keyword = tuple[str, Any]  # and its value


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
    paths = {tool.name: f"#/$defs/{tool.name}" for tool in tools}
    calls = [
        {
            "type": "object",
            "properties": {"name": {"const": name}, "parameters": {"$ref": path}},
            "required": ["name", "parameters"],
            "additionalProperties": False,
        }
        for name, path in paths.items()
    ]
    schema: Format = {
        "type": "array",
        "minItems": 1,
        "items": {"anyOf": calls},
        "$defs": {tool.name: relocated(tool.schema, paths[tool.name]) for tool in tools},
    }
    return schema if parallel else {**schema, "maxItems": 1}


def holdable(schema: Any) -> Any:
    """A schema without the keywords that no grammar holds, so that it allows more."""

    def held(key: str, value: Any) -> Keyword | None:
        is_elsewhere = key == "$ref" and isinstance(value, str) and not value.startswith("#")
        return None if key in UNHELD or is_elsewhere else (RENAMED.get(key, key), value)

    return rewritten(schema, held)


def relocated(schema: Any, at: str) -> Any:
    """A schema at another path of a document: references to itself point there."""

    def moved(key: str, value: Any) -> Keyword:
        is_inside = key == "$ref" and isinstance(value, str) and value.startswith("#")
        return key, at + value.removeprefix("#") if is_inside else value

    return rewritten(schema, moved)


def rewritten(schema: Any, change: Callable[[str, Any], Keyword | None]) -> Any:
    """A schema with every keyword and its value as `change` returns them; None leaves one out."""
    match schema:
        case dict():
            found = [change(key, value) for key, value in cast(Format, schema).items()]
            return {key: rewritten_value(key, value, change) for key, value in filter(None, found)}
        case list():
            return [rewritten(each, change) for each in cast(list[Any], schema)]
        case _:
            return schema


def rewritten_value(key: str, value: Any, change: Callable[[str, Any], Keyword | None]) -> Any:
    if key in NAMED_PARTS and isinstance(value, dict):
        return {name: rewritten(part, change) for name, part in cast(Format, value).items()}
    return value if key in VALUES else rewritten(value, change)
