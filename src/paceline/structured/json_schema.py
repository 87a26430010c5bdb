"""JSON schemas as values: their parts, their references, and objects without further keys."""

from collections.abc import Iterator
from typing import Any, cast

from paceline.core.errors import RequestError

Schema = dict[str, Any]

MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
LISTS = ("anyOf", "allOf", "oneOf", "prefixItems", "items")
SINGLES = (
    "items",
    "additionalItems",
    "additionalProperties",
    "propertyNames",
    "contains",
    "not",
    "if",
    "then",
    "else",
    "unevaluatedItems",
    "unevaluatedProperties",
)
COMBINING = ("$ref", "allOf", "anyOf", "oneOf", "if", "dependentSchemas", "dependencies")

# The formats that both backends know. By the standard, other formats are annotations.
FORMATS = frozenset(
    ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"]
)


def knows_format(schema: Schema) -> bool:
    return isinstance(schema.get("format"), str) and schema["format"] in FORMATS


def parts(schema: Schema) -> Iterator[Any]:
    """The schemas directly inside a schema."""
    for name in MAPS:
        if isinstance(schema.get(name), dict):
            yield from schema[name].values()
    for name in LISTS:
        if isinstance(schema.get(name), list):
            yield from schema[name]
    for name in SINGLES:
        if isinstance(schema.get(name), dict | bool):
            yield schema[name]


def whole(schema: object) -> Iterator[Schema]:
    """A schema and all schemas inside it that are objects."""
    if isinstance(schema, dict):
        node = cast(Schema, schema)
        yield node
        for part in parts(node):
            yield from whole(part)


def resolved(root: object, reference: object) -> object:
    """The schema that a reference inside the same document points to."""
    if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
        raise RequestError(f"$ref {reference!r} is not supported: use a path that starts with #/")
    found: Any = root
    for step in reference.split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and key.isdecimal() and int(key) < len(cast(list[Any], found)):
            found = cast(list[Any], found)[int(key)]
        elif isinstance(found, dict) and key in found:
            found = cast(Schema, found)[key]
        else:
            raise RequestError(f"$ref {reference!r} points to nothing")
    return cast(object, found)


def closed(schema: object) -> object:
    """The schema with `additionalProperties: false` where an object lists its properties, and
    `items: false` where an array lists its items, unless the schema says otherwise.

    A model would add keys without end otherwise, and a grammar with arbitrary keys is many times
    larger. A schema that combines such objects with others, by `allOf` for example, stays as it is:
    its parts allow each other's keys.
    """
    return schema if any(map(combines, whole(schema))) else closed_part(schema)


def combines(node: Schema) -> bool:
    """Does it hold an object to several schemas at once?"""
    combining = [name for name in COMBINING if name in node]
    listed = "properties" in node or "prefixItems" in node
    several = isinstance(node.get("allOf"), list) and len(node["allOf"]) > 1
    return several or len(combining) > 1 or (listed and bool(combining))


def closed_part(schema: object) -> object:
    if not isinstance(schema, dict):
        return schema
    node = cast(Schema, schema)
    node = {
        **node,
        **{
            name: {key: closed_part(part) for key, part in node[name].items()}
            for name in MAPS
            if isinstance(node.get(name), dict)
        },
        **{
            name: [closed_part(part) for part in node[name]]
            for name in LISTS
            if isinstance(node.get(name), list)
        },
        **{name: closed_part(node[name]) for name in SINGLES if isinstance(node.get(name), dict)},
    }
    listed = "properties" in node or "patternProperties" in node
    if listed and "unevaluatedProperties" not in node:
        node.setdefault("additionalProperties", False)
    if "prefixItems" in node and "unevaluatedItems" not in node:
        node.setdefault("items", False)
    return node


def check_counts(schema: object) -> None:
    """Refuse a count of keys that a grammar cannot hold: it cannot tell that a key is repeated."""
    for node in whole(schema):
        least = node.get("minProperties")
        if not isinstance(least, int) or node.get("additionalProperties") is False:
            continue
        required = node.get("required")
        known = len(cast(list[Any], required)) if isinstance(required, list) else 0
        if least > max(1, known):
            raise RequestError(
                f"minProperties {least} needs as many required properties, "
                "or additionalProperties: false"
            )
