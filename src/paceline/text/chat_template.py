"""Renders a conversation as the prompt of a chat model."""

import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Any, NoReturn, Protocol, cast

from jinja2 import Template, TemplateError, TemplateSyntaxError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.meta import find_undeclared_variables
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from paceline.core.errors import ConfigError, RequestError
from paceline.text.chat_messages import (
    Message,
    MessageForm,
    plain_messages,
    shown_content,
    text_part,
)
from paceline.text.described_tools import with_tools, with_written_calls

CHATML = """\
{%- for message in messages -%}
{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{ '<|im_start|>assistant\n' }}
{%- endif -%}
"""

log = logging.getLogger(__name__)

MISSING = (
    "this model has no chat template: set chat_template (--chat-template) to a file with one, "
    'to its text, or to "chatml"; or send a prompt instead of messages'
)
BUILT_IN = {"chatml": CHATML}
CACHED = 16  # templates, for requests that have their own

# A template with none of these has no use for an effort.
EFFORT = {"reasoning_effort", "enable_thinking"}

DESCRIBED = (
    "the chat template of this model shows no tools: they are described in a system "
    "message, with calls as JSON in <tool_call>"
)
NO_EFFORT = "the chat template of this model does not use reasoning_effort: it has no effect"
MARK = "MARK_OF_SYSTEM"

# A text that no template changes, behind the content of a message that is to be continued.
END_OF_CONTENT = "CONTINUE_FINAL_MESSAGE_HERE"

# How Mistral's templates check the ids of tool calls.
NINE_CHARACTERS = re.compile(r"id\s*\|\s*length\s*!=\s*9\b")
# How Llama's templates refuse a message with several tool calls.
SINGLE_CALL = re.compile(
    r"tool_calls\s*\|\s*length\s*(?:[!=]=|>)\s*1\s*-?%\}\s*\{\{-?\s*raise_exception"
)

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
    """The template of a tokenizer."""

    @property
    def chat_template(self) -> str | None: ...

    @property
    def tool_template(self) -> str | None: ...

    @property
    def bos_token(self) -> str: ...

    @property
    def eos_token(self) -> str: ...


class ChatTemplate:
    """A template gets messages in the form that it expects, and cannot change them.

    It is a program that comes with the model, so it runs in a sandbox. Without a source, every
    conversation is refused. A model may have another template for conversations with tools.
    """

    def __init__(
        self,
        source: str | None,
        *,
        bos_token: str = "",
        eos_token: str = "",
        now: Callable[[], datetime] = datetime.now,
        tool_source: str | None = None,
    ) -> None:
        self._template = compiled(source) if source else None
        self._used = variables_of(source) if source else frozenset[str]()
        self._form = form_of(source) if source else MessageForm()
        self._shows_calls = "tools" in self._used or "tool_calls" in (source or "")
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        self._now = now
        self._for_tools = (
            ChatTemplate(tool_source, **self._tokens, now=now) if tool_source else None
        )

    @classmethod
    def of(cls, tokenizer: TemplateSource) -> "ChatTemplate":
        return cls(
            tokenizer.chat_template,
            bos_token=tokenizer.bos_token,
            eos_token=tokenizer.eos_token,
            tool_source=tokenizer.tool_template,
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
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """Return the prompt, to be encoded without special tokens, with further `variables`.

        With `continue_final_message` it ends with the content of the last message. Tools that the
        template does not show are described in a message.
        """
        if tools and self._for_tools is not None:
            return self._for_tools.render(
                messages,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                tools=tools,
                variables=variables,
            )
        if not messages:
            raise RequestError("a chat needs at least one message")
        if self._template is None:
            raise RequestError(MISSING)
        if add_generation_prompt and continue_final_message:
            raise RequestError(
                "continue_final_message continues the last message, but add_generation_prompt "
                "begins a new one; set one of them to false"
            )
        shown = self._with_tools(plain_messages(messages, self._form), tools)
        if continue_final_message:
            shown[-1]["content"] = with_end(shown[-1]["content"])
        seen = {
            **(variables or {}),
            "strftime_now": self._strftime_now,
            **self._tokens,
            "messages": shown,
            "tools": tools or None,
            "add_generation_prompt": add_generation_prompt,
        }
        if seen.get("documents") and "documents" not in self._used:
            raise RequestError(
                "documents has no effect, because the chat template of this model does not use it; "
                "remove documents"
            )
        if seen.get("reasoning_effort") and EFFORT.isdisjoint(self._used):
            say_once(NO_EFFORT)
        try:
            prompt = self._template.render(seen)
        except FAULTS as error:
            raise RequestError(f"the chat template rejects this conversation: {error}") from None
        return up_to_content(prompt) if continue_final_message else prompt

    def _with_tools(
        self, messages: list[dict[str, Any]], tools: Sequence[Mapping[str, Any]] | None
    ) -> list[dict[str, Any]]:
        """Messages in which everything that the template does not show is text."""
        found = messages if self._shows_calls else with_written_calls(messages, self._form)
        if not tools or "tools" in self._used:
            return found
        say_once(DESCRIBED)
        return with_tools(found, tools, self._form, self._shows_system)

    @cached_property
    def _shows_system(self) -> bool:
        """Whether the template shows a system message. Some refuse it, and some leave it out."""
        assert self._template is not None
        said = [(role, shown_content(MARK, self._form)) for role in ("system", "user")]
        seen = {**self._tokens, "strftime_now": self._strftime_now, "tools": None}
        messages = [{"role": role, "content": content} for role, content in said]
        try:
            text = self._template.render({**seen, "messages": messages})
        except FAULTS:
            return False
        return text.count(MARK) == len(said)

    def _strftime_now(self, layout: str) -> str:
        return self._now().strftime(layout)


@cache
def say_once(fact: str) -> None:
    """Log a fact about the model once, not for each request."""
    log.warning("%s", fact)


def shows_tools(source: str) -> bool:
    """Whether a template uses the tools that it is given."""
    return "tools" in variables_of(source)


def with_end(content: Any) -> Any:
    """The content of a message, with a mark behind it."""
    if isinstance(content, list):
        return [*cast("list[Any]", content), text_part(END_OF_CONTENT)]
    return (content or "") + END_OF_CONTENT


def up_to_content(prompt: str) -> str:
    begin, mark, _ = prompt.rpartition(END_OF_CONTENT)
    if not mark:
        raise RequestError(
            "continue_final_message has no effect, because the chat template does not show the "
            "content of the last message; remove continue_final_message"
        )
    return begin


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


@lru_cache(CACHED)
def form_of(source: str) -> MessageForm:
    """What a template expects of messages, by the tests that it makes."""
    parsed = sandbox().parse(source)
    tests = list(parsed.find_all(nodes.Test))
    has_parts = any(name_of(loop.iter) == "content" for loop in parsed.find_all(nodes.For))
    has_strings = any(
        test.name in ("string", "iterable") and name_of(test.node) == "content" for test in tests
    )
    return MessageForm(
        none_content=any(test.name == "none" and name_of(test.node) == "content" for test in tests),
        short_ids=NINE_CHARACTERS.search(source) is not None,
        single_calls=SINGLE_CALL.search(source) is not None,
        parts=has_parts,
        strings=has_strings or not has_parts,
    )


def name_of(node: nodes.Node) -> str:
    """The last part of `message.content`, `message['content']` or `content`."""
    match node:
        case nodes.Getattr(attr=str(name)) | nodes.Name(name=str(name)):
            return name
        case nodes.Getitem(arg=nodes.Const(value=str(name))):
            return name
        case _:
            return ""


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
