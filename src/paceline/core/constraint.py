"""What a client asks of the shape of an output, as plain values."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, cast, runtime_checkable

from paceline.core.errors import RequestError

Kind = Literal["json", "regex", "choice", "grammar", "structural_tag", "text"]

MAX_BYTES = 512 * 1024  # of a schema, a pattern, a grammar or all choices
CONTROL = re.compile(r"[\x7f-\x9f]")  # control characters that JSON does not escape
BRACKET = re.compile(r"[()\[\]{}]")
MOST_BANNED = 64  # tokens of one banned sequence
MAX_DEPTH = 64  # of nested arrays and objects in a schema, and of groups in a pattern or a grammar


@runtime_checkable
class HasSchema(Protocol):
    """A class of pydantic, which says what its documents look like."""

    def model_json_schema(self) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class Constraint:
    """One kind and its text. Schemas, choices and structural tags are JSON in canonical form, so
    that equal constraints are equal values. The order of keys is kept: it is the order of
    properties in documents. The kind `text` is any output, for what `banned` and
    `reasoning_tokens` leave of it.

    Use the class methods: they check what they are given and raise a RequestError.
    """

    kind: Kind
    text: str
    any_whitespace: bool = True  # between the tokens of JSON; else one space after , and :
    reasoning_end: str = ""  # the text from which on it holds; empty: from the first token
    # The text with which the part before `reasoning_end` begins, if there is such a part; empty:
    # the output begins inside it.
    reasoning_start: str = ""
    banned: tuple[tuple[int, ...], ...] = ()  # token sequences that the output never has
    reasoning_tokens: int | None = None  # most tokens before `reasoning_end` begins

    @classmethod
    def any_text(cls) -> "Constraint":
        """Any output."""
        return cls("text", "")

    @classmethod
    def json(cls, schema: object, *, any_whitespace: bool = True) -> "Constraint":
        """A document valid against a JSON schema: a value, its text, or a pydantic class."""
        if isinstance(schema, HasSchema):
            schema = schema.model_json_schema()
        value = parsed("the JSON schema", schema)
        if value is False:
            raise RequestError("the JSON schema false allows no document")
        if value is not True and not isinstance(value, dict):
            raise RequestError(
                f"the JSON schema must be an object or a boolean, not {json_type(value)}"
            )
        return cls("json", canonical("the JSON schema", cast(object, value)), any_whitespace)

    @classmethod
    def json_object(cls, *, any_whitespace: bool = True) -> "Constraint":
        """Any JSON object."""
        return cls.json({"type": "object"}, any_whitespace=any_whitespace)

    @classmethod
    def regex(cls, pattern: object) -> "Constraint":
        """A text that the pattern matches from its start to its end."""
        return cls("regex", checked_text("the regex", pattern))

    @classmethod
    def choice(cls, choices: object) -> "Constraint":
        """One of several texts."""
        if not isinstance(choices, list | tuple) or not choices:
            raise RequestError("choice must be a list of one or more strings")
        texts = cast(Sequence[object], choices)
        seen: set[str] = set()
        for at, text in enumerate(texts):
            if not isinstance(text, str) or not text:
                raise RequestError(f"choice {at} must be a string that is not empty")
            if text in seen:
                raise RequestError(f"choice has {text!r} twice")
            seen.add(text)
        return cls("choice", canonical("the list of choices", list(texts)))

    @classmethod
    def grammar(cls, text: object) -> "Constraint":
        """A text of a grammar in EBNF as llama.cpp writes it (rules with `::=`), or in Lark."""
        return cls("grammar", checked_text("the grammar", text))

    @classmethod
    def structural_tag(cls, tag: object) -> "Constraint":
        """Free text with tagged parts that follow schemas. xgrammar's documentation describes the
        formats. The older form with `structures` and `triggers` is accepted too."""
        value = parsed("the structural tag", tag)
        if not isinstance(value, dict):
            raise RequestError(f"the structural tag must be an object, not {json_type(value)}")
        fields = cast(dict[str, Any], value)
        if "format" not in fields:
            fields = {"format": triggered_tags(fields)}
        return cls(
            "structural_tag",
            canonical("the structural tag", {"type": "structural_tag", "format": fields["format"]}),
        )

    def after_reasoning(self, start: str, end: str) -> "Constraint":
        """The same for the answer of a model that reasons first."""
        return replace(self, reasoning_start=start, reasoning_end=end)

    def within(self, tokens: int) -> "Constraint":
        """The same for a model that reasons in so many tokens at most."""
        return replace(self, reasoning_tokens=tokens)

    def without(self, banned: tuple[tuple[int, ...], ...]) -> "Constraint":
        """The same for an output that never has these token sequences."""
        if (longest := max(map(len, banned), default=0)) > MOST_BANNED:
            raise RequestError(
                f"bad_words has a word of {longest} tokens; at most {MOST_BANNED} are supported"
            )
        return replace(self, banned=banned)

    @property
    def is_guarded(self) -> bool:
        """Whether more than a grammar holds the output."""
        return bool(self.banned) or self.reasoning_tokens is not None

    @property
    def of_answer(self) -> "Constraint":
        """The grammar of the answer alone."""
        plain = replace(self, reasoning_start="", reasoning_end="", banned=())
        return replace(plain, reasoning_tokens=None)

    @property
    def value(self) -> Any:
        """The schema, the list of choices or the structural tag."""
        return json.loads(self.text)


def triggered_tags(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The format that stands for the older form of a structural tag."""
    structures, triggers = fields.get("structures"), fields.get("triggers")
    if not isinstance(structures, list) or not isinstance(triggers, list):
        raise RequestError("the structural tag needs `format`, or `structures` and `triggers`")
    tags: list[dict[str, Any]] = []
    for at, one in enumerate(cast(list[object], structures)):
        if not isinstance(one, dict) or not {"begin", "end"} <= one.keys():
            raise RequestError(f"structure {at} of the structural tag needs `begin` and `end`")
        item = cast(dict[str, Any], one)
        schema = item.get("schema", True)
        content = {"type": "json_schema", "json_schema": schema}
        tags.append({"begin": item["begin"], "content": content, "end": item["end"]})
    return {"type": "triggered_tags", "triggers": triggers, "tags": tags}


def quoted(text: str) -> str:
    """A text as a literal of a grammar, in EBNF and in Lark."""
    literal = json.dumps(text, ensure_ascii=False)
    return CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", literal)


# -- checks -------------------------------------------------------------------


def parsed(what: str, value: object) -> object:
    """A value of JSON; a text is read as JSON."""
    if not isinstance(value, str):
        return value
    checked_size(what, value)
    try:
        return json.loads(value)
    except json.JSONDecodeError as error:
        raise RequestError(
            f"{what} is not JSON: {error.msg} at line {error.lineno}, column {error.colno}"
        ) from None
    except RecursionError:
        raise RequestError(f"{what} is nested deeper than {MAX_DEPTH} levels") from None
    except ValueError as error:  # a number with thousands of digits
        raise RequestError(f"{what} is not JSON: {error}") from None


def canonical(what: str, value: object) -> str:
    """The JSON of a value, after checks of its depth and size."""
    if depth(value) > MAX_DEPTH:
        raise RequestError(f"{what} is nested deeper than {MAX_DEPTH} levels")
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise RequestError(f"{what} is not JSON: {error}") from None
    return checked_size(what, text)


def depth(value: object) -> int:
    """Levels of nested arrays and objects, counted up to one more than the limit."""
    levels, inner = 0, [value]
    while inner and levels <= MAX_DEPTH:
        inner = [
            child
            for one in inner
            if isinstance(one, dict | list | tuple)
            for child in (
                cast(dict[Any, object], one).values()
                if isinstance(one, dict)
                else cast(Sequence[object], one)
            )
        ]
        levels += bool(inner)
    return levels


def checked_text(what: str, text: object) -> str:
    if not isinstance(text, str) or not text:
        raise RequestError(f"{what} must be a string that is not empty")
    checked_size(what, text)
    open_groups = deepest = 0
    for bracket in BRACKET.findall(text):
        open_groups += 1 if bracket in "([{" else -1
        deepest = max(deepest, open_groups)
    if deepest > MAX_DEPTH:
        raise RequestError(f"{what} is nested deeper than {MAX_DEPTH} levels")
    return text


def checked_size(what: str, text: str) -> str:
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise RequestError(
            f"{what} is not valid Unicode: character {error.start} is an unpaired surrogate"
        ) from None
    if size > MAX_BYTES:
        raise RequestError(f"{what} has {size:,} bytes, more than {MAX_BYTES:,}")
    return text


def json_type(value: object) -> str:
    names = {"NoneType": "null", "int": "a number", "float": "a number", "str": "a string"}
    return names.get(type(value).__name__, "an array" if isinstance(value, list) else "an object")
