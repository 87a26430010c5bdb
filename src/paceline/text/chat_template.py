"""Writes a conversation as the one text that a chat model was trained to read."""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn, cast

from jinja2 import TemplateError, TemplateSyntaxError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from paceline.core.errors import ConfigError, RequestError
from paceline.text.tokenizer import Tokenizer

Message = Mapping[str, Any]

CHATML = """\
{%- for message in messages -%}
{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{ '<|im_start|>assistant\n' }}
{%- endif -%}
"""

ROLES = {"developer": "system"}  # names that templates do not know

# What an expression can raise when the messages are not what the template expects.
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
    """`{% generation %}` marks what to train on; when only reading, its content counts."""

    tags = {"generation"}  # noqa: RUF012 - the base class declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """A template sees messages whose content is a string, and cannot change what it sees.

    It is a program that came with the model, so it runs in a sandbox. A model without one gets
    ChatML.
    """

    def __init__(
        self,
        source: str | None,
        *,
        bos_token: str = "",
        eos_token: str = "",
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        world = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, loopcontrols]
        )
        cast("Any", world).filters["tojson"] = to_json
        functions: dict[str, Callable[[str], str]] = {
            "raise_exception": refuse,
            "strftime_now": lambda layout: now().strftime(layout),
        }
        try:
            self._template = world.from_string(source or CHATML, globals=functions)
        except TemplateSyntaxError as error:
            raise ConfigError(
                f"the chat template has an error in line {error.lineno}: {error.message}"
            ) from None
        except (SyntaxError, RecursionError) as error:
            raise ConfigError(f"the chat template cannot be parsed: {error}") from None
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "ChatTemplate":
        return cls(
            tokenizer.chat_template, bos_token=tokenizer.bos_token, eos_token=tokenizer.eos_token
        )

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The text to encode without further special tokens; `variables` are the template's own."""
        if not messages:
            raise RequestError("a chat needs at least one message")
        seen = {
            **(variables or {}),
            **self._tokens,
            "messages": [plain(message) for message in messages],
            "tools": tools,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            return self._template.render(seen)
        except FAULTS as error:
            raise RequestError(f"the chat template rejects this conversation: {error}") from None


def plain(message: Message) -> dict[str, Any]:
    """A message as templates expect it: content as a string, arguments of calls as objects."""
    role = message.get("role")
    if not isinstance(role, str):
        raise RequestError("a message has no role, or its role is not a string")
    content = text_of(message.get("content"))
    changed = {**message, "role": ROLES.get(role, role), "content": content}
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
    """Clients send the arguments of a call as JSON in a string, or nothing where there are none."""
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
    """Without the escapes for HTML that jinja's own filter adds."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def refuse(message: str) -> NoReturn:
    raise TemplateError(message)
