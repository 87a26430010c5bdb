"""Tool calls, and the pieces of a reply that a parser finds in the text of a model."""

import re
import secrets
import string
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, Literal, cast

from paceline.core.errors import RequestError

ALPHANUMERIC = string.ascii_letters + string.digits


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that a model asks for. `arguments` is the JSON text as the model wrote it.

    A model that is cut off leaves incomplete arguments, and no parser corrects malformed ones.
    """

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ContentDelta:
    """More text for the user, which the model wrote from `begin` to before `end`.

    These count characters of the text of the model. Whitespace that was moved over a call stands
    before `begin`.
    """

    text: str
    begin: int = field(default=0, compare=False)
    end: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More text of the reasoning before the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class CallDelta:
    """More of the call number `index`: its id and name first and once, then its arguments."""

    index: int
    arguments: str = ""
    id: str | None = None
    name: str | None = None


ReplyDelta = ContentDelta | ReasoningDelta | CallDelta


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole reply. None: it has no such part."""

    content: str | None = None
    reasoning: str | None = None
    calls: tuple[ToolCall, ...] = ()


def call_id() -> str:
    """An id in OpenAI's form."""
    return f"call_{secrets.token_hex(12)}"


def short_call_id() -> str:
    """An id in the form that Mistral's chat templates require: nine letters and digits."""
    return "".join(secrets.choice(ALPHANUMERIC) for _ in range(9))


def joined(deltas: Iterable[ReplyDelta]) -> Reply:
    """The reply that the deltas add up to."""
    content: list[str] = []
    reasoning: list[str] = []
    begun: dict[int, CallDelta] = {}
    arguments: defaultdict[int, list[str]] = defaultdict(list)
    for delta in deltas:
        match delta:
            case ContentDelta(text):
                content.append(text)
            case ReasoningDelta(text):
                reasoning.append(text)
            case CallDelta(index, piece):
                begun.setdefault(index, delta)
                arguments[index].append(piece)
    return Reply(
        "".join(content) or None,
        "".join(reasoning) or None,
        tuple(
            ToolCall(first.id or "", first.name or "", "".join(arguments[index]))
            for index, first in begun.items()
        ),
    )


def merged(deltas: list[ReplyDelta]) -> list[ReplyDelta]:
    """The same deltas, with neighbours of one kind as one."""
    if len(deltas) <= 1:  # as nearly always
        return deltas
    return [as_one(list(group)) for _, group in groupby(deltas, kind_of)]


def kind_of(delta: ReplyDelta) -> tuple[type, int]:
    return type(delta), delta.index if isinstance(delta, CallDelta) else 0


def as_one(group: list[ReplyDelta]) -> ReplyDelta:
    first = group[0]
    text = "".join(d.arguments if isinstance(d, CallDelta) else d.text for d in group)
    if isinstance(first, CallDelta):
        return replace(first, arguments=text)
    if isinstance(last := group[-1], ContentDelta):
        return replace(first, text=text, end=last.end)
    return replace(first, text=text)


MOST_TOOLS = 1024
DEEPEST = 100  # levels of a schema
NAME = re.compile(r"[a-zA-Z0-9_.-]{1,128}")
NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}}

Schema = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may ask for. `strict`: its arguments must match `parameters`."""

    name: str
    description: str | None = None
    parameters: Schema | None = None  # a JSON schema; None: the client gave none
    strict: bool = False

    @property
    def schema(self) -> Schema:
        """What the arguments must match."""
        return self.parameters or NO_PARAMETERS

    def shown(self) -> dict[str, Any]:
        """The form that chat templates expect."""
        described = {"description": self.description, "parameters": self.parameters}
        given = {key: value for key, value in described.items() if value is not None}
        return {"type": "function", "function": {"name": self.name, **given}}


@dataclass(frozen=True, slots=True)
class NamedTool:
    """The choice of the one tool that the model must call."""

    name: str


ToolChoice = Literal["none", "auto", "required"] | NamedTool


def read_tools(given: Iterable[object] | None) -> tuple[Tool, ...]:
    """The tools of a request, as in OpenAI's chats and responses and in Anthropic's messages.

    RequestError if one is malformed, or if two have the same name.
    """
    tools: dict[str, Tool] = {}
    for place, one in enumerate(given or ()):
        if place == MOST_TOOLS:
            raise RequestError(f"tools has more than {MOST_TOOLS} entries; send fewer")
        tool = read_tool(one, f"tools[{place}]")
        if tool.name in tools:
            raise RequestError(
                f"tools[{place}] has the name {tool.name!r}, and so has a tool before it; "
                "give each tool its own name"
            )
        tools[tool.name] = tool
    return tuple(tools.values())


def read_tool(given: object, where: str) -> Tool:
    fields = cast(Schema, given if isinstance(given, dict) else {})
    if isinstance(function := fields.get("function"), dict):
        return tool_of(cast(Schema, function), where, "parameters")
    kind = fields.get("type", "custom")
    if "input_schema" in fields and kind == "custom":
        return tool_of(fields, where, "input_schema")
    if "name" in fields and kind == "function":
        return tool_of(fields, where, "parameters")
    if isinstance(given, dict) and "type" in fields and kind != "function":
        raise RequestError(f"{where} has the type {kind!r:.200}; only 'function' is supported")
    raise RequestError(
        f"{where} must be an object with type 'function' and a function that has a name"
    )


def tool_of(fields: Schema, where: str, schema: str) -> Tool:
    name, description, strict = (fields.get(key) for key in ("name", "description", "strict"))
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise RequestError(
            f"{where} has the name {name!r:.200}; a name has 1 to 128 letters, digits, "
            "underscores, dots and dashes"
        )
    if description is not None and not isinstance(description, str):
        raise RequestError(f"the description of the tool {name!r} must be a string")
    if strict is not None and not isinstance(strict, bool):
        raise RequestError(f"strict of the tool {name!r} must be true or false")
    parameters = fields.get(schema)
    if parameters is not None:
        check_schema(parameters, f"{schema} of the tool {name!r}")
    return Tool(name, description, parameters, bool(strict))


def check_schema(schema: object, what: str) -> None:
    """Arguments are an object, so their schema must be one of objects."""
    if not isinstance(schema, dict):
        kind = type(schema).__name__
        raise RequestError(f"{what} must be a JSON schema, an object; it has the type {kind}")
    kind = cast(dict[str, Any], schema).get("type", "object")
    if kind != "object":
        raise RequestError(f"{what} describes {kind!r:.200}; its type must be 'object'")
    if is_deeper(cast(object, schema), DEEPEST):
        raise RequestError(f"{what} is nested deeper than {DEEPEST} levels; simplify it")


def is_deeper(value: object, levels: int) -> bool:
    match value:
        case dict():
            inner = cast(dict[str, object], value).values()
        case list():
            inner = cast(list[object], value)
        case _:
            return False
    return levels == 0 or any(is_deeper(each, levels - 1) for each in inner)


def read_choice(given: object, tools: Sequence[Tool]) -> ToolChoice:
    """The choice of a request, in the form of either API. RequestError if it cannot be met."""
    choice = choice_of(given, "auto" if tools else "none")
    if choice in ("none", "auto"):
        return choice
    if not tools:
        raise RequestError("tool_choice asks for a call, but the request has no tools; add tools")
    if isinstance(choice, NamedTool) and all(tool.name != choice.name for tool in tools):
        known = ", ".join(tool.name for tool in tools)
        raise RequestError(
            f"tool_choice names {choice.name!r:.200}, which is not among the tools: {known:.500}"
        )
    return choice


def choice_of(given: object, default: Literal["none", "auto"]) -> ToolChoice:
    match given:
        case None:
            return default
        case "none" | {"type": "none"}:
            return "none"
        case "auto" | {"type": "auto"}:
            return "auto"
        case "required" | {"type": "any"}:
            return "required"
        case {"type": "function", "function": {"name": str(name)}}:
            return NamedTool(name)
        case {"type": "function" | "tool", "name": str(name)}:
            return NamedTool(name)
        case _:
            raise RequestError(
                f"tool_choice is {given!r:.200}; it must be none, auto, required, or an object "
                "with type 'function' and the name of a tool"
            )
