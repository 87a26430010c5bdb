import pytest

from paceline.core.errors import ConfigError
from paceline.tools.formats.deepseek_v3 import DeepseekV3Parser
from paceline.tools.formats.glm45 import Glm45Parser
from paceline.tools.formats.hermes import HermesParser
from paceline.tools.formats.json_calls import JsonCallParser
from paceline.tools.formats.llama3_json import Llama3JsonParser
from paceline.tools.formats.mistral import MistralParser
from paceline.tools.formats.pythonic import PythonicParser
from paceline.tools.formats.qwen3_coder import Qwen3CoderParser
from paceline.tools.parser import ToolParser
from paceline.tools.reasoning_parser import MistralReasoning, Qwen3Reasoning, ReasoningParser
from paceline.tools.registry import REASONING_PARSERS, TOOL_PARSERS, reasoning_parser, tool_parser
from tests.text.tool_templates import LLAMA, MISTRAL, NEWER_MISTRAL, QWEN


def test_parsers_are_found_by_name() -> None:
    for name, parser in TOOL_PARSERS.items():
        assert tool_parser(name) is parser
    for name, other in REASONING_PARSERS.items():
        assert reasoning_parser(name) is other


def test_parsers_are_found_by_a_dotted_path() -> None:
    assert tool_parser("paceline.tools.formats.hermes.HermesParser") is HermesParser
    with pytest.raises(ConfigError, match="is not a subclass of ReasoningParser"):
        reasoning_parser("paceline.tools.formats.hermes.HermesParser")


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ConfigError, match="no tool parser 'yaml': there are deepseek_v3, "):
        tool_parser("yaml")
    with pytest.raises(ConfigError, match="no reasoning parser 'x': there are deepseek_r1, "):
        reasoning_parser("x")


@pytest.mark.parametrize(
    ("template", "parser"),
    [
        (QWEN, HermesParser),
        (LLAMA, Llama3JsonParser),
        (MISTRAL, MistralParser),
        (NEWER_MISTRAL, MistralParser),
        ("<tool_call>\n<function=look>", Qwen3CoderParser),
        ("<tool_call>look\n<arg_key>q</arg_key>", Glm45Parser),
        ("{{ '<｜tool▁calls▁begin｜>' }}", DeepseekV3Parser),
        ("{{ '<|python_start|>' }}", PythonicParser),
        ("<|python_tag|>", Llama3JsonParser),
        ("{{ messages }}", JsonCallParser),
        ("", JsonCallParser),
        (None, JsonCallParser),
    ],
)
def test_a_chat_template_shows_the_format(template: str | None, parser: type[ToolParser]) -> None:
    assert tool_parser("auto", template) is parser


@pytest.mark.parametrize(
    ("template", "parser"),
    [
        ("{{ '<think>\\n\\n</think>' }}", Qwen3Reasoning),
        ("{{ content.split('</think>') }}", Qwen3Reasoning),
        ("{{ '[THINK]' }}", MistralReasoning),
        (LLAMA, None),
        (None, None),
    ],
)
def test_a_chat_template_shows_whether_the_model_reasons(
    template: str | None, parser: type[ReasoningParser] | None
) -> None:
    assert reasoning_parser("auto", template) is parser
