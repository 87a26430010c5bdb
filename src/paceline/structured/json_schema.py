"""JSON schemas as values, and tags of Lark grammars."""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

from paceline.core.constraint import quoted
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
    """Whether a schema applies several schemas to one object."""
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


ANY_TEXT = "/(.|\\n)*/"
SPACE = "[ \\t\\r\\n]"
SUPPORTED = "json_schema, or, tag, tags_with_separator and triggered_tags"

Format = dict[str, Any]


class TagRules:
    """Writes one rule for each part of a structural tag. `prepare` makes a schema ready, or raises
    a RequestError."""

    def __init__(self, prepare: Callable[[object], object]) -> None:
        self._prepare = prepare
        self._rules: list[str] = []

    def grammar(self, format: Any) -> str:
        start = self._format(format)
        return "\n".join([f"start: {start}", *self._rules])

    def _format(self, format: Any) -> str:
        match format:
            case {"type": "json_schema", "json_schema": schema}:
                return self._document(schema, format)
            case {"type": "tag", "begin": str(begin), "content": content, "end": str(end)}:
                return self._tag(begin, content, end)
            case {"type": "tags_with_separator", "tags": [*tags], "separator": str(between)}:
                return self._separated(tags, between, format)
            case {"type": "or", "elements": [*parts]}:
                return self._one_of([self._format(part) for part in parts])
            case {"type": "triggered_tags", "tags": [*tags], "triggers": [*triggers]}:
                named = [one for one in triggers if isinstance(one, str) and one]
                return self._triggered(tags, named, format)
            case {"type": str(kind)}:
                raise RequestError(
                    f"the type {kind!r} in structural tags is not supported, or not in this form; "
                    f"there are {SUPPORTED}"
                )
            case _:
                raise RequestError(f"a part of the structural tag has no type: {format!r:.200}")

    def _rule(self, written: str, name: str = "") -> str:
        """Add a rule, and return its name."""
        name = name or f"part_{len(self._rules)}"
        self._rules.append(f"{name}: {written}")
        return name.removesuffix("[lazy]")

    def _document(self, schema: object, form: Format) -> str:
        if form.get("style", "json") != "json":
            raise RequestError(
                f"llguidance cannot hold arguments in the style {form['style']!r}; xgrammar can: "
                "pip install 'paceline[xgrammar]' on the server"
            )
        prepared = self._prepare(schema)
        fields = cast(Format, prepared) if isinstance(prepared, dict) else {}
        options: Format = {"coerce_one_of": False, "lenient": False}
        if (most := form.get("max_whitespace_cnt")) is not None:
            options["whitespace_pattern"] = f"{SPACE}{{1,{int(most)}}}"
        return self._rule(f"%json {json.dumps({**fields, 'x-guidance': options})}")

    def _tag(self, begin: str, content: Any, end: str) -> str:
        parts = [quoted(begin) if begin else "", self._format(content), quoted(end) if end else ""]
        return self._rule(" ".join(filter(None, parts)))

    def _separated(self, tags: Sequence[Any], between: str, form: Format) -> str:
        any_tag = self._one_of([self._format(with_type(tag)) for tag in tags])
        more = f"({quoted(between)} {any_tag})*" if between else f"{any_tag}*"
        several = any_tag if form.get("stop_after_first") else f"{any_tag} {more}"
        return self._rule(several if form.get("at_least_one") else f"({several})?")

    def _triggered(self, tags: Sequence[Any], triggers: Sequence[str], form: Format) -> str:
        text = self._rule(ANY_TEXT, f"TEXT_{len(self._rules)}")
        any_tag = self._one_of([self._after_trigger(text, tag, triggers) for tag in tags])
        if form.get("stop_after_first"):
            return any_tag if form.get("at_least_one") else self._rule(f"{any_tag} | {text}")
        some = "+" if form.get("at_least_one") else "*"
        return self._rule(f"{any_tag}{some} {text}")

    def _after_trigger(self, text: str, tag: Any, triggers: Sequence[str]) -> str:
        """Text up to a trigger, and the rest of the tag that it begins."""
        match tag:
            case {"begin": str(begin), "content": content, "end": str(end)}:
                for trigger in filter(begin.startswith, triggers):
                    first = self._rule(
                        f"{text} {quoted(trigger)}", f"trigger_{len(self._rules)}[lazy]"
                    )
                    rest = self._tag(begin.removeprefix(trigger), content, end)
                    return self._rule(f"{first} {rest}")
            case _:
                pass
        raise RequestError(
            f"a tag needs a begin, a content, an end, and a trigger that its begin starts with: "
            f"{tag!r:.200}"
        )

    def _one_of(self, names: Sequence[str]) -> str:
        if not names:
            raise RequestError("a part of the structural tag is empty")
        return names[0] if len(names) == 1 else self._rule(" | ".join(names))


def with_type(tag: Any) -> Any:
    """The tags of a list may leave their type out."""
    return {"type": "tag", **cast(Format, tag)} if isinstance(tag, dict) else tag
