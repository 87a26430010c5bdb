"""Renders a conversation as the prompt of a chat model."""

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

ROLES = {"developer": "system"}  # roles that templates do not know

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


class ChatTemplate:
    """A template gets messages whose content is a string, and cannot change them.

    It is a program that comes with the model, so it runs in a sandbox. A model without a template
    gets ChatML.
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
        """Return the prompt, to be encoded without special tokens, with further `variables`."""
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
    """A message as templates expect it: content as a string, arguments of tool calls as objects."""
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
