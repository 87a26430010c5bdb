"""Renders a conversation as the prompt of a chat model."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn, Protocol, cast

from jinja2 import Template, TemplateError, TemplateSyntaxError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.meta import find_undeclared_variables
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from paceline.core.errors import ConfigError, RequestError

Message = Mapping[str, Any]

CHATML = """\
{%- for message in messages -%}
{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{ '<|im_start|>assistant\n' }}
{%- endif -%}
"""

MISSING = (
    "this model has no chat template: set chat_template (--chat-template) to a file with one, "
    'to its text, or to "chatml"; or send a prompt instead of messages'
)
BUILT_IN = {"chatml": CHATML}
CACHED = 16  # templates, for requests that have their own
ROLES = {"developer": "system"}  # roles that templates do not know

# Variables that a caller relies on: a template that does not use them cannot render them.
NEEDED = ("tools", "reasoning_effort")

# What an expression can raise if the messages are not what the template expects.
FAULTS = (
    TemplateError,
    TypeError,
    ValueError,
    LookupError,
    MemoryError,
    ArithmeticError,
    AttributeError,
    RecursionError,
)


class GenerationTag(Extension):
    """`{% generation %}` marks text for training. Rendering keeps its content."""

    tags = {"generation"}  # noqa: RUF012 - the base class declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class TemplateSource(Protocol):
    """What a tokenizer knows of its template."""

    @property
    def chat_template(self) -> str | None: ...

    @property
    def bos_token(self) -> str: ...

    @property
    def eos_token(self) -> str: ...


class ChatTemplate:
    """A template gets messages whose content is a string, and cannot change them.

    It is a program that comes with the model, so it runs in a sandbox. Without a source, every
    conversation is refused.
    """

    def __init__(
        self,
        source: str | None,
        *,
        bos_token: str = "",
        eos_token: str = "",
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        self._template = compiled(source) if source else None
        self._used = variables_of(source) if source else frozenset[str]()
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        self._now = now

    @classmethod
    def of(cls, tokenizer: TemplateSource) -> "ChatTemplate":
        return cls(
            tokenizer.chat_template, bos_token=tokenizer.bos_token, eos_token=tokenizer.eos_token
        )

    def replaced(self, source: str) -> "ChatTemplate":
        """Another template for the same tokenizer. RequestError if it is malformed."""
        try:
            return ChatTemplate(source, **self._tokens, now=self._now)
        except ConfigError as error:
            raise RequestError(str(error)) from None

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """Return the prompt, to be encoded without special tokens, with further `variables`."""
        if not messages:
            raise RequestError("a chat needs at least one message")
        if self._template is None:
            raise RequestError(MISSING)
        seen = {
            **(variables or {}),
            "strftime_now": self._strftime_now,
            **self._tokens,
            "messages": [plain(message) for message in messages],
            "tools": tools,
            "add_generation_prompt": add_generation_prompt,
        }
        for name in NEEDED:
            if seen.get(name) and name not in self._used:
                raise RequestError(
                    f"{name} has no effect, because the chat template of this model does not use "
                    f"it; remove {name}"
                )
        try:
            return self._template.render(seen)
        except FAULTS as error:
            raise RequestError(f"the chat template rejects this conversation: {error}") from None

    def _strftime_now(self, layout: str) -> str:
        return self._now().strftime(layout)


@lru_cache(CACHED)
def compiled(source: str) -> Template:
    try:
        return sandbox().from_string(source, globals={"raise_exception": refuse})
    except TemplateSyntaxError as error:
        raise ConfigError(
            f"the chat template has an error in line {error.lineno}: {error.message}"
        ) from None
    except (SyntaxError, RecursionError) as error:
        raise ConfigError(f"the chat template cannot be parsed: {error}") from None


@lru_cache(CACHED)
def variables_of(source: str) -> frozenset[str]:
    """The variables that a template uses. It has been compiled, so its syntax is right."""
    return frozenset(find_undeclared_variables(sandbox().parse(source)))


def sandbox() -> ImmutableSandboxedEnvironment:
    world = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, loopcontrols]
    )
    cast("Any", world).filters["tojson"] = to_json
    return world


def read_template(given: str) -> str:
    """The text of a template: a built-in one by name, a text, or the content of a file."""
    if given in BUILT_IN:
        return BUILT_IN[given]
    if re.search(r"\{[{%#]", given):
        return given
    try:
        return Path(given).expanduser().read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        problem = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(
            f"chat_template is {given!r:.200}, which cannot be read: {problem}; give a file with a "
            f"template, its text, or {' or '.join(BUILT_IN)}"
        ) from None


def plain(message: Message) -> dict[str, Any]:
    """A message as templates expect it: content as a string, arguments of tool calls as objects."""
    role = message.get("role")
    if not isinstance(role, str):
        raise RequestError("a message has no role, or its role is not a string")
    content = message.get("content")
    if content is None and role != "assistant":  # whose tool calls may be all it says
        raise RequestError(f"a message of the role {role!r} has no content")
    changed = {**message, "role": ROLES.get(role, role), "content": text_of(content)}
    if isinstance(calls := message.get("tool_calls"), list):
        changed["tool_calls"] = [parsed(call) for call in cast(list[Any], calls)]
    return changed


def text_of(content: object) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        kind = type(content).__name__
        raise RequestError(
            f"the content of a message has type {kind}; it must be a string or a list of parts"
        )
    return "\n".join(map(part_text, cast(list[object], content)))


def part_text(part: object) -> str:
    match part:
        case {"type": "text", "text": str(text)}:
            return text
        case {"type": str(kind)}:
            raise RequestError(f"a message part of type {kind!r} is not supported; only 'text' is")
        case _:
            raise RequestError("a message part has no type")


def parsed(call: Any) -> Any:
    """Clients send the arguments of a tool call as a JSON string, which may be empty."""
    match call:
        case {"function": {"arguments": str() | None as arguments}}:
            try:
                value = json.loads((arguments or "").strip() or "{}")
            except (ValueError, RecursionError) as error:
                raise RequestError(f"the arguments of a tool call are not JSON: {error}") from None
            return {**call, "function": {**call["function"], "arguments": value}}
        case _:
            return call


def to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write JSON without the HTML escapes of jinja's own filter."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def refuse(message: str) -> NoReturn:
    raise TemplateError(message)
