"""Which JSON schemas xgrammar holds exactly.

xgrammar ignores some keywords, and some combinations of keywords, without an error. The rules here
were found by running the JSON Schema test suite on it: documents of an accepted schema are valid.
"""

import re
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, cast

from paceline.core.errors import RequestError
from paceline.structured.json_schema import Schema, knows_format, resolved

ESCAPES = frozenset("dDwWsSnrtfvxu")  # letters that stand for the same in both


def exact_regex(pattern: object) -> str:
    """The pattern as xgrammar needs it: there a dot matches a line break too.

    xgrammar ignores anchors inside a pattern and takes unknown escapes as letters. Such patterns
    raise a RequestError that says where. Classes like `\\w` contain ASCII only.
    """
    if not isinstance(pattern, str):
        raise RequestError(f"the regex must be a string, not {pattern!r}")
    written: list[str] = []
    groups, in_class, at = 0, False, 0
    while at < len(pattern):
        character = pattern[at]
        if character == "\\":
            after = pattern[at + 1 : at + 2]
            if after.isalnum() and after not in ESCAPES:
                raise refused_at(at, f"the escape \\{after}")
            written.append(character + after)
            at += 2
            continue
        if not in_class:
            groups += (character == "(") - (character == ")")
            if character == "^" and (groups or pattern[at - 1 : at] not in ("", "|")):
                raise refused_at(at, "^ that is not at the start")
            if character == "$" and (groups or pattern[at + 1 : at + 2] not in ("", "|")):
                raise refused_at(at, "$ that is not at the end")
        written.append("[^\\n]" if character == "." and not in_class else character)
        in_class = character == "[" or (in_class and character != "]")
        at += 1
    return "".join(written)


def refused_at(position: int, what: str) -> RequestError:
    return RequestError(f"xgrammar does not support {what}, at position {position} of the regex")


BOUNDS = frozenset(["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"])
OF_TYPE: dict[str, frozenset[str]] = {
    # Not minLength and maxLength: with them, strings have control characters and no escapes.
    "string": frozenset(["pattern", "format"]),
    "integer": BOUNDS | {"multipleOf"},
    "number": BOUNDS,
    "object": frozenset(
        [
            "properties",
            "required",
            "additionalProperties",
            "patternProperties",
            "propertyNames",
            "minProperties",
            "maxProperties",
        ]
    ),
    "array": frozenset(["items", "prefixItems", "minItems", "maxItems"]),
    "boolean": frozenset(),
    "null": frozenset(),
}
# Parts of a pattern that may stand for characters that JSON escapes, or for halves of surrogate
# pairs, which xgrammar allows wherever a part stands for most characters.
LOOSE = re.compile(r'["\x00-\x1f.]|\\[nrtfvxuDWS\\]|\[\^')
COUNTS = ("minItems", "maxItems", "minProperties", "maxProperties")
# Keywords that restrict documents, of all drafts. The others are annotations.
RESTRICTING = frozenset[str]().union(*OF_TYPE.values()) | {
    "$dynamicRef",
    "$recursiveRef",
    "$ref",
    "additionalItems",
    "allOf",
    "anyOf",
    "const",
    "contains",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "else",
    "enum",
    "if",
    "maxContains",
    "maxLength",
    "minContains",
    "minLength",
    "not",
    "oneOf",
    "then",
    "type",
    "unevaluatedItems",
    "unevaluatedProperties",
    "uniqueItems",
}
NEUTRAL: dict[str, tuple[object, ...]] = {
    "uniqueItems": (False,),
    "unevaluatedItems": (True,),
    "unevaluatedProperties": (True,),
    "required": ([],),
    "minItems": (0,),
    "minLength": (0,),
    "minProperties": (0,),
}


def check_exact(schema: object) -> None:
    """A RequestError that names the first part of a schema that xgrammar does not hold exactly."""
    ExactRules(schema).check(schema, "#")


@dataclass
class ExactRules:
    """The rules over one document. `seen` has the references that were followed."""

    root: object
    seen: set[str] = field(default_factory=set[str])

    def check(self, schema: object, path: str) -> None:
        if schema is True:
            return
        if not isinstance(schema, dict):
            raise refused(path, "a schema that is false or malformed")
        node = cast(Schema, schema)
        if path != "#" and "$id" in node:
            raise refused(path, "$id inside the schema")
        used = restricting(node)
        if "$ref" in used:
            self._reference(node, used, path)
        elif used & {"enum", "const"}:
            check_values(node, used, path)
        elif combined := used & {"anyOf", "oneOf", "allOf"}:
            self._combination(node, used, min(combined), path)
        elif used:
            self._typed(node, used, path)

    def _reference(self, node: Schema, used: set[str], path: str) -> None:
        only(used, {"$ref"}, path)
        target = resolved(self.root, node["$ref"])
        if node["$ref"] not in self.seen:
            self.seen.add(node["$ref"])
            self.check(target, node["$ref"])

    def _combination(self, node: Schema, used: set[str], name: str, path: str) -> None:
        only(used, {name}, path)
        branches = node[name]
        if not isinstance(branches, list) or not branches:
            raise refused(path, f"{name} that is not a list of schemas")
        branches = cast(list[object], branches)
        if name == "allOf" and len(branches) > 1:
            raise refused(path, "allOf of several schemas")
        for at, branch in enumerate(branches):
            self.check(branch, f"{path}/{name}/{at}")
        if name == "oneOf" and not all(self._disjoint(a, b) for a, b in combinations(branches, 2)):
            raise refused(path, "oneOf whose branches may overlap; anyOf allows it")

    def _typed(self, node: Schema, used: set[str], path: str) -> None:
        types = types_of(node, used)
        if not types <= OF_TYPE.keys() or not types:
            raise refused(path, f"{', '.join(sorted(used))} without a known type")
        only(used, {"type"}.union(*(OF_TYPE[one] for one in types)), path)
        for name in COUNTS:
            if name in used and type(node[name]) is not int:
                raise refused(path, f"{name} that is not an integer")
        check_string(node, used, path)
        check_number(node, used, path)
        self._array(node, used, path)
        self._object(node, used, path)

    def _array(self, node: Schema, used: set[str], path: str) -> None:
        first = node.get("prefixItems", [])
        if not isinstance(first, list):
            raise refused(path, "prefixItems that is not a list")
        for at, one in enumerate(cast(list[object], first)):
            self.check(one, f"{path}/prefixItems/{at}")
        if "items" in used and not (node["items"] is False and first):
            self.check(node["items"], f"{path}/items")

    def _object(self, node: Schema, used: set[str], path: str) -> None:
        for name in ("properties", "patternProperties"):
            if not isinstance(node.get(name, {}), dict):
                raise refused(path, f"{name} that is not an object")
        properties: Schema = node.get("properties", {})
        for name, one in properties.items():
            self.check(one, f"{path}/properties/{name}")
        required: Any = node.get("required", [])
        if (
            not isinstance(required, list)
            or not set(cast(list[str], required)) <= properties.keys()
        ):
            raise refused(path, "required names that are not in properties")
        if node.get("additionalProperties") is not False and "additionalProperties" in used:
            self.check(node["additionalProperties"], f"{path}/additionalProperties")
        if "patternProperties" in used:
            self._patterns(node, used, path)
        if "propertyNames" in used:
            only(used, {"type", "propertyNames"}, path)
            self.check(node["propertyNames"], f"{path}/propertyNames")

    def _patterns(self, node: Schema, used: set[str], path: str) -> None:
        only(used, {"type", "patternProperties", "additionalProperties"}, path)
        patterns: Schema = node["patternProperties"]
        if len(patterns) > 1 or node.get("additionalProperties") is not False:
            raise refused(path, "several patternProperties, or other keys beside them")
        for pattern, one in patterns.items():
            check_pattern(pattern, path)
            self.check(one, f"{path}/patternProperties/{pattern}")

    def _disjoint(self, one: object, other: object) -> bool:
        """Whether it is certain that no value is valid against both."""
        pair = [self._target(one), self._target(other)]
        if not all(isinstance(schema, dict) for schema in pair):
            return False
        a, b = cast(list[Schema], pair)
        types = [types_of(schema, restricting(schema)) for schema in (a, b)]
        if all(types) and not widened(types[0]) & widened(types[1]):
            return True
        values = [values_of(a), values_of(b)]
        if all(values):
            return not any(same(x, y) for x in values[0] for y in values[1])
        shared = set(a.get("required", [])) & set(b.get("required", []))
        objects = all(one == {"object"} for one in types)
        return objects and any(
            self._disjoint(a.get("properties", {}).get(name), b.get("properties", {}).get(name))
            for name in sorted(shared)
        )

    def _target(self, schema: object) -> object:
        seen: set[str] = set()
        while isinstance(schema, dict) and "$ref" in schema:
            reference = cast(Schema, schema)["$ref"]
            if reference in seen:
                return None
            seen.add(reference)
            schema = resolved(self.root, reference)
        return cast(object, schema)


def restricting(node: Schema) -> set[str]:
    """The keywords of a schema that restrict documents."""
    used = {
        name
        for name in node.keys() & RESTRICTING
        if not any(node[name] is one or node[name] == one for one in NEUTRAL.get(name, ()))
    }
    if not knows_format(node):
        used.discard("format")
    return used


def types_of(node: Schema, used: set[str]) -> set[str]:
    """The types that a schema names, or that xgrammar takes from its keywords."""
    named: Any = node.get("type")
    if isinstance(named, list):
        return {str(one) for one in cast(list[object], named)}
    if isinstance(named, str):
        return {named}
    if "properties" in used:
        return {"object"}
    return {"array"} if used & {"items", "prefixItems"} else set()


def values_of(node: Schema) -> list[object]:
    """The values that a schema lists; none if it does not."""
    return node["enum"] if "enum" in node else [node["const"]] if "const" in node else []


def check_values(node: Schema, used: set[str], path: str) -> None:
    only(used, {"type", "enum"} if "enum" in used else {"type", "const"}, path)
    values: Any = node.get("enum", [node.get("const")])
    if not isinstance(values, list) or not values:
        raise refused(path, "enum that is not a list of values")
    if "type" in used:
        types = widened(types_of(node, used))
        if not all(type_name(value) in types for value in cast(list[object], values)):
            raise refused(path, "values that do not have the type")


def check_string(node: Schema, used: set[str], path: str) -> None:
    if {"pattern", "format"} <= used:
        raise refused(path, "pattern beside format")
    if "pattern" in used:
        check_pattern(node["pattern"], path)


def check_pattern(pattern: object, path: str) -> None:
    """In xgrammar a pattern matches the whole string, and characters are never escaped."""
    exact_regex(pattern)
    text = cast(str, pattern)
    if not (text.startswith("^") and text.endswith("$")):
        raise refused(path, f"the pattern {pattern!r}, which does not start with ^ and end with $")
    if LOOSE.search(text.replace("\\.", "")):
        raise refused(path, f"the pattern {pattern!r}, with characters that JSON may escape")


def check_number(node: Schema, used: set[str], path: str) -> None:
    for name in sorted(used & (BOUNDS | {"multipleOf"})):
        value = node[name]
        whole_number = type(value) is int
        if not whole_number and ("integer" in types_of(node, used) or not plain(value)):
            raise refused(path, f"{name} {value!r}")
    if "multipleOf" in used:
        only(used, {"type", "multipleOf"}, path)
        if types_of(node, used) != {"integer"} or node["multipleOf"] < 1:
            raise refused(path, "multipleOf of numbers")


def plain(value: object) -> bool:
    return isinstance(value, float) and "e" not in repr(value)


def widened(types: set[str]) -> set[str]:
    """An integer is a number too."""
    return types | {"integer"} if "number" in types else types


def type_name(value: object) -> str:
    match value:
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case dict():
            return "object"
        case _:
            return "null" if value is None else "array"


def same(one: object, other: object) -> bool:
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def only(used: set[str], allowed: set[str], path: str) -> None:
    if further := used - allowed:
        beside = ", ".join(sorted(used & allowed))
        what = ", ".join(sorted(further))
        raise refused(path, f"{what} beside {beside}" if beside else what)


def refused(path: str, what: str) -> RequestError:
    return RequestError(f"xgrammar does not support this at {path}: {what}")
