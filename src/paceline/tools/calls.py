"""Tool calls, and the pieces of a reply that a parser finds in the text of a model."""

import secrets
import string
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import groupby

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
