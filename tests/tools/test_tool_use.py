from typing import Any

import pytest

from paceline.core.errors import RequestError
from paceline.tools.calls import NamedTool, Reply
from paceline.tools.formats.hermes import HermesParser
from paceline.tools.formats.json_calls import JsonCallParser
from paceline.tools.formats.llama3_json import Llama3JsonParser
from paceline.tools.formats.mistral import MistralParser
from paceline.tools.formats.qwen3_coder import Qwen3CoderParser
from paceline.tools.parser import ToolParser
from paceline.tools.tool_use import NamedCallParser, ToolUse
from tests.tools.support import ARGUMENTS, assert_splits_agree, call, parsed

SCHEMA = {"type": "object", "properties": {"q": {"type": "integer"}}, "required": ["q"]}
LOOK = {"type": "function", "function": {"name": "look", "parameters": SCHEMA}}
NOW = {"type": "function", "function": {"name": "now"}}
NAMED = {"type": "function", "function": {"name": "look"}}
ARGUMENTS_FORMAT = {"type": "json_schema", "json_schema": SCHEMA, "max_whitespace_cnt": 8}


def use(
    format: type[ToolParser], choice: Any, parallel: bool | None = None, template: str = ""
) -> ToolUse:
    return ToolUse.read([LOOK, NOW], choice, parallel, format, template)


def strict(format: type[ToolParser]) -> ToolUse:
    look = {"type": "function", "function": {**LOOK["function"], "strict": True}}
    return ToolUse.read([look, NOW], "auto", None, format)


def test_a_request_is_read() -> None:
    read = use(HermesParser, NAMED, False)
    assert (read.choice, read.parallel) == (NamedTool("look"), False)
    assert read.shown() == [LOOK, NOW]
    with pytest.raises(RequestError, match="tool_choice"):
        use(HermesParser, "sometimes")


def test_none_shows_and_parses_nothing() -> None:
    for unused in (use(MistralParser, "none"), ToolUse.read(None, None, None, MistralParser)):
        assert unused.shown() is None
        assert unused.parser() is None
        assert unused.constraint() is None
        assert not unused.needs_special_tokens
    assert use(MistralParser, "auto").needs_special_tokens
    assert not use(HermesParser, "auto").needs_special_tokens


@pytest.mark.parametrize("format", [HermesParser, Llama3JsonParser, MistralParser, JsonCallParser])
def test_auto_holds_the_model_only_to_strict_tools(format: type[ToolParser]) -> None:
    assert use(format, "auto").constraint() is None
    assert isinstance(use(format, "auto").parser(), format)
    held = strict(format).constraint()
    assert (held is None) == (format is JsonCallParser)  # text must be possible too


def test_auto_holds_other_tools_to_any_object() -> None:
    held = strict(HermesParser).constraint()
    assert held is not None
    assert held["format"]["type"] == "triggered_tags"
    assert held["format"]["triggers"] == ["<tool_call>"]
    look, now = (each["content"]["json_schema"] for each in held["format"]["tags"])
    assert look == SCHEMA
    assert now == {"type": "object"}


def test_all_calls_are_held_where_the_template_does_not_show_tools() -> None:
    unheld = {**LOOK["function"], "parameters": {**SCHEMA, "not": {}}}
    read = ToolUse.read([{"type": "function", "function": unheld}, NOW], "auto", None, HermesParser)
    use = read.held(None)
    held = use.constraint()
    assert held is not None
    assert held["format"]["stop_after_first"]
    look, now = (each["content"]["json_schema"] for each in held["format"]["tags"])
    assert look == SCHEMA
    assert now == {"type": "object", "properties": {}}
    assert not read.held(True).constraint()["format"]["stop_after_first"]  # type: ignore[index]


@pytest.mark.parametrize("format", [JsonCallParser, Qwen3CoderParser])
def test_calls_beside_a_document_need_markers_and_json(format: type[ToolParser]) -> None:
    assert use(format, "auto").calls_or(SCHEMA) is None
    assert use(HermesParser, "required").calls_or(SCHEMA) is None
    assert use(HermesParser, "auto").calls_or(SCHEMA) is not None


def test_calls_of_hermes_are_held_between_its_markers() -> None:
    assert use(HermesParser, NAMED).constraint() == {
        "type": "structural_tag",
        "format": {
            "type": "tags_with_separator",
            "separator": "\n",
            "tags": [
                {
                    "type": "tag",
                    "begin": '<tool_call>\n{"name": "look", "arguments": ',
                    "content": ARGUMENTS_FORMAT,
                    "end": "}\n</tool_call>",
                }
            ],
            "at_least_one": True,
            "stop_after_first": True,
        },
    }
    several = use(HermesParser, "required").constraint()
    assert several is not None
    assert not several["format"]["stop_after_first"]
    assert len(several["format"]["tags"]) == 2


def test_calls_of_llama_are_separated() -> None:
    held = use(Llama3JsonParser, "required", False).constraint()
    assert held is not None
    format = held["format"]
    assert (format["type"], format["separator"]) == ("tags_with_separator", "; ")
    assert format["stop_after_first"]
    assert format["tags"][0]["begin"] == '{"name": "look", "parameters": '


@pytest.mark.parametrize("template", ["[TOOL_CALLS] [", "[TOOL_CALLS]["])
def test_calls_of_mistral_are_one_list(template: str) -> None:
    held = use(MistralParser, "required", template=template).constraint()
    assert held is not None
    listed = held["format"]
    assert (listed["begin"], listed["end"]) == (template, "]")
    assert listed["content"]["separator"] == ", "
    assert listed["content"]["tags"][0]["begin"] == '{"name": "look", "arguments": '


def test_calls_of_newer_mistral_have_a_marker_each() -> None:
    held = use(MistralParser, NAMED, template="[TOOL_CALLS] [ARGS]").constraint()
    assert held is not None
    (tag,) = held["format"]["tags"]
    assert (tag["begin"], tag["content"], tag["end"]) == (
        "[TOOL_CALLS]look[ARGS]",
        ARGUMENTS_FORMAT,
        "",
    )


def test_json_is_held_by_a_schema() -> None:
    required = use(JsonCallParser, "required")
    held = required.constraint()
    assert held is not None
    assert (held["type"], held["json_schema"]["strict"]) == ("json_schema", True)
    assert held["json_schema"]["schema"]["type"] == "array"
    assert isinstance(required.parser(), JsonCallParser)


def test_one_tool_without_markers_needs_its_arguments_only() -> None:
    named = use(JsonCallParser, NAMED)
    held = named.constraint()
    assert held is not None
    assert held["json_schema"]["schema"] == SCHEMA
    assert isinstance(named.parser(), NamedCallParser)


@pytest.mark.parametrize("format", [HermesParser, Llama3JsonParser, MistralParser, JsonCallParser])
@pytest.mark.parametrize("template", ["", "[ARGS]"])
def test_the_parser_reads_what_the_constraint_allows(
    format: type[ToolParser], template: str
) -> None:
    named = use(format, NAMED, template=template)
    held = named.constraint()
    assert held is not None
    text = written(held.get("format") or ARGUMENTS_FORMAT)

    def make() -> Any:
        return named.parser()

    reply = parsed(make, text)
    assert [(each.name, each.arguments) for each in reply.calls] == [("look", '{"q": 7}')]
    assert reply.content is None


def written(format: dict[str, Any]) -> str:
    """A text that the format allows."""
    match format["type"]:
        case "json_schema":
            return '{"q": 7}'
        case "tag":
            return format["begin"] + written(format["content"]) + format["end"]
        case _:
            return written(format["tags"][0])


@pytest.mark.parametrize("arguments", ARGUMENTS)
def test_all_text_is_the_arguments_of_the_call(arguments: str) -> None:
    reply = assert_splits_agree(lambda: NamedCallParser("look"), f"\n {arguments}\n\n")
    assert reply == Reply(calls=(call("look", arguments),))


def test_without_text_there_is_no_call() -> None:
    assert assert_splits_agree(lambda: NamedCallParser("look"), " \n") == Reply()
