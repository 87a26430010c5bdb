"""Finds parsers by the names that vLLM gives them, or by a model's chat template."""

from collections.abc import Mapping

from paceline.core.plugins import load
from paceline.tools.formats.deepseek_v3 import CALLS, DeepseekV3Parser
from paceline.tools.formats.glm45 import Glm45Parser
from paceline.tools.formats.hermes import HermesParser
from paceline.tools.formats.json_calls import JsonCallParser
from paceline.tools.formats.llama3_json import Llama3JsonParser
from paceline.tools.formats.mistral import MistralParser
from paceline.tools.formats.pythonic import PythonicParser
from paceline.tools.formats.qwen3_coder import Qwen3CoderParser
from paceline.tools.parser import ToolParser
from paceline.tools.reasoning_parser import (
    DeepseekR1Reasoning,
    MistralReasoning,
    Qwen3Reasoning,
    ReasoningParser,
)

TOOL_PARSERS: Mapping[str, type[ToolParser]] = {
    "deepseek_v3": DeepseekV3Parser,
    "deepseek_v31": DeepseekV3Parser,
    "glm45": Glm45Parser,
    "glm47": Glm45Parser,
    "hermes": HermesParser,
    "json": JsonCallParser,
    "llama3_json": Llama3JsonParser,
    "llama4_json": Llama3JsonParser,
    "llama4_pythonic": PythonicParser,
    "mistral": MistralParser,
    "pythonic": PythonicParser,
    "qwen3_coder": Qwen3CoderParser,
    "qwen3_xml": Qwen3CoderParser,
}
REASONING_PARSERS: Mapping[str, type[ReasoningParser]] = {
    "deepseek_r1": DeepseekR1Reasoning,
    "mistral": MistralReasoning,
    "qwen3": Qwen3Reasoning,
}

# What a chat template has that shows the format, the first that it has. Several have `<tool_call>`.
HINTS = {
    "[TOOL_CALLS]": "mistral",
    "<function=": "qwen3_coder",
    "<arg_key>": "glm45",
    "<tool_call>": "hermes",
    CALLS: "deepseek_v3",
    "<|python_start|>": "pythonic",
    "<|python_tag|>": "llama3_json",
    '"parameters": dictionary of argument name': "llama3_json",
}

CHOICES = ("auto", "none")  # further values of the settings


def tool_parser(name: str, template: str | None = None) -> type[ToolParser]:
    """The parser of that name; for `auto`, the one that fits the source of a chat template."""
    if name == "auto":
        name = detected_format(template or "")
    return load("tool parser", name, TOOL_PARSERS, ToolParser, also=CHOICES)


def reasoning_parser(name: str, template: str | None = None) -> type[ReasoningParser] | None:
    """The parser of that name; for `auto`, None if the model writes no blocks of reasoning."""
    if name == "auto":
        found = detected_reasoning(template or "")
        if found is None:
            return None
        name = found
    return load("reasoning parser", name, REASONING_PARSERS, ReasoningParser, also=CHOICES)


def detected_format(template: str) -> str:
    return next((name for hint, name in HINTS.items() if hint in template), "json")


def detected_reasoning(template: str) -> str | None:
    if "[THINK]" in template:
        return "mistral"
    # Where the template opens the block, the end of each prompt shows it to the parser.
    return "qwen3" if "<think>" in template or "</think>" in template else None
