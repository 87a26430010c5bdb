"""Finds parsers by the names that vLLM gives them, or by a model's chat template."""

from collections.abc import Mapping
from typing import TypeVar, cast

from paceline.core.errors import ConfigError
from paceline.core.plugins import load
from paceline.tools.formats.hermes import HermesParser
from paceline.tools.formats.json_calls import JsonCallParser
from paceline.tools.formats.llama3_json import Llama3JsonParser
from paceline.tools.formats.mistral import MistralParser
from paceline.tools.parser import TextParser
from paceline.tools.reasoning.deepseek_r1 import DeepseekR1Reasoning
from paceline.tools.reasoning.mistral import MistralReasoning
from paceline.tools.reasoning.qwen3 import Qwen3Reasoning
from paceline.tools.reasoning_parser import ReasoningParser
from paceline.tools.tool_parser import ToolParser

TOOL_PARSERS: Mapping[str, type[ToolParser]] = {
    "hermes": HermesParser,
    "json": JsonCallParser,
    "llama3_json": Llama3JsonParser,
    "llama4_json": Llama3JsonParser,
    "mistral": MistralParser,
}
REASONING_PARSERS: Mapping[str, type[ReasoningParser]] = {
    "deepseek_r1": DeepseekR1Reasoning,
    "mistral": MistralReasoning,
    "qwen3": Qwen3Reasoning,
}

# Formats that also have `<tool_call>`, but no JSON in it: those of Qwen3-Coder and GLM.
NOT_HERMES = ("<function=", "<arg_key>")
LLAMA_HINT = '"parameters": dictionary of argument name'

P = TypeVar("P", bound=TextParser)


def tool_parser(name: str, template: str | None = None) -> type[ToolParser]:
    """The parser of that name; for `auto`, the one that fits the source of a chat template."""
    if name == "auto":
        name = detected_format(template or "")
    return named("tool parser", name, TOOL_PARSERS, ToolParser)


def reasoning_parser(name: str, template: str | None = None) -> type[ReasoningParser] | None:
    """The parser of that name; for `auto`, None if the model writes no blocks of reasoning."""
    if name == "auto":
        found = detected_reasoning(template or "")
        if found is None:
            return None
        name = found
    return named("reasoning parser", name, REASONING_PARSERS, ReasoningParser)


def detected_format(template: str) -> str:
    if "[TOOL_CALLS]" in template:
        return "mistral"
    if "<tool_call>" in template and not any(each in template for each in NOT_HERMES):
        return "hermes"
    if "<|python_tag|>" in template or LLAMA_HINT in template:
        return "llama3_json"
    return "json"


def detected_reasoning(template: str) -> str | None:
    if "[THINK]" in template:
        return "mistral"
    # Where the template opens the block, the end of each prompt shows it to the parser.
    return "qwen3" if "<think>" in template or "</think>" in template else None


def named(what: str, name: str, known: Mapping[str, type[P]], base: type[P]) -> type[P]:
    if name in known:
        return known[name]
    if "." in name:
        return cast(type[P], load(what, name, "", base))
    raise ConfigError(
        f"no {what} {name!r}: there are {', '.join(known)}, auto, none, and dotted paths"
    )
