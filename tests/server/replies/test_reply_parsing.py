"""Which parsers a server has, and what they make of a request."""

from collections.abc import Sequence

import pytest

from paceline.core.errors import RequestError
from paceline.core.events import NO_TIMINGS
from paceline.engine.api import RequestOutput, SamplingParams, TextDelta, Usage
from paceline.server.replies.reply_parsing import (
    PLAIN_REPLY,
    ReplyFormats,
    ReplyParsing,
    ReplyReader,
)
from paceline.server.settings import ServerSettings
from paceline.text.tokenizer import Tokenizer
from paceline.tools.calls import ContentDelta, ReasoningDelta
from paceline.tools.formats.hermes import HermesParser
from paceline.tools.formats.json_calls import JsonCallParser
from paceline.tools.formats.mistral import MistralParser
from paceline.tools.reasoning_parser import DeepseekR1Reasoning, MistralReasoning, Qwen3Reasoning
from tests.engine.support import tokenizer
from tests.server.sample_replies import SCHEMA, TOOLS

AUTO = ServerSettings()
PROMPT = (5, 6)
STRICT = [{"type": "function", "function": {"name": "look", "strict": True}}]


def with_template(template: str, tool_template: str | None = None) -> Tokenizer:
    made = object.__new__(Tokenizer)
    vars(made).update(vars(tokenizer()))
    made.chat_template, made.tool_template = template, tool_template
    return made


@pytest.mark.parametrize(
    ("template", "calls", "reasoning"),
    [
        ("{{ '<tool_call>' }} {{ '<think>' }}", HermesParser, Qwen3Reasoning),
        ("{{ tools }} {{ '[TOOL_CALLS]' }}", MistralParser, None),
        ("{{ tools }} {{ messages }}", JsonCallParser, None),
        ("{{ messages }}", HermesParser, None),  # as the tools are described
    ],
)
def test_parsers_fit_the_template(template: str, calls: object, reasoning: object) -> None:
    formats = ReplyFormats.of(AUTO, with_template(template))
    assert (formats.calls, formats.reasoning) == (calls, reasoning)
    own = ReplyFormats.of(AUTO, with_template("{{ '[THINK]' }}", template))
    assert (own.calls, own.reasoning) == (calls, MistralReasoning)


def test_parsers_are_chosen_by_name_or_not_at_all() -> None:
    named = ServerSettings(tool_call_parser="hermes", reasoning_parser="deepseek_r1")
    formats = ReplyFormats.of(named, tokenizer())
    assert (formats.calls, formats.reasoning) == (HermesParser, DeepseekR1Reasoning)
    none = ServerSettings(tool_call_parser="none", reasoning_parser="none")
    formats = ReplyFormats.of(none, with_template("<think> <tool_call>"))
    assert (formats.calls, formats.reasoning) == (None, None)


def test_a_request_without_tools_is_plain_where_the_model_does_not_reason() -> None:
    formats = ReplyFormats.of(AUTO, tokenizer())
    for choice in (None, "none", "auto"):
        assert formats.asked(None, choice, None) is PLAIN_REPLY
        assert formats.asked([], choice, None).is_plain
    assert formats.asked(TOOLS, "none", None).is_plain
    assert not formats.asked(TOOLS, None, None).is_plain
    thinking = ReplyFormats.of(ServerSettings(reasoning_parser="qwen3"), tokenizer())
    assert not thinking.asked(None, None, None).is_plain
    assert not thinking.asked(None, None, None).has_tools


def test_special_tokens_are_decoded_where_they_are_markers() -> None:
    params = SamplingParams()
    mistral = ReplyFormats.of(ServerSettings(tool_call_parser="mistral"), tokenizer())
    assert not mistral.asked(TOOLS, None, None).decoded(params).skip_special_tokens
    assert mistral.asked(TOOLS, "none", None).decoded(params) is params
    hermes = ReplyFormats.of(ServerSettings(tool_call_parser="hermes"), tokenizer())
    assert hermes.asked(TOOLS, None, None).decoded(params) is params
    thinking = ReplyFormats.of(ServerSettings(reasoning_parser="mistral"), tokenizer())
    assert not thinking.asked(None, None, None).decoded(params).skip_special_tokens


def test_strict_tools_are_held_by_a_grammar() -> None:
    hermes = ServerSettings(tool_call_parser="hermes")
    formats = ReplyFormats.of(hermes, with_template("{{ tools }}"))
    plain = SamplingParams()
    assert formats.asked(TOOLS, "auto", None).held(plain, PROMPT) is plain
    held = formats.asked(STRICT, "auto", None).held(plain, PROMPT).constraint
    assert held is not None
    assert "triggered_tags" in held.text
    as_json = ReplyFormats.of(ServerSettings(tool_call_parser="json"), tokenizer())
    array = as_json.asked(TOOLS, "required", None).held(plain, PROMPT).constraint
    assert array is not None
    assert (array.kind, array.any_whitespace) == ("json", False)
    both = SamplingParams(structured_outputs={"regex": "a"})
    with pytest.raises(RequestError, match="cannot be combined"):
        formats.asked(STRICT, "required", None).held(both, PROMPT)
    own = formats.asked(STRICT, "auto", None).held(both, PROMPT)
    assert own.constraint == both.constraint


@pytest.mark.parametrize("template", ["{{ tools }}", "{{ messages }}"])
def test_the_model_may_call_or_write_the_document_that_is_asked_for(template: str) -> None:
    """The document alone would forbid calls, and calls alone another answer."""
    formats = ReplyFormats.of(ServerSettings(tool_call_parser="hermes"), with_template(template))
    schema = {"type": "object", "properties": {"sky": {"type": "string"}}}
    params = SamplingParams(structured_outputs={"json": schema})
    held = formats.asked(TOOLS, "auto", None).held(params, PROMPT).constraint
    assert held is not None
    calls, document = held.value["format"]["elements"]
    assert (calls["type"], document["json_schema"]) == ("tags_with_separator", schema)


def test_calls_are_held_where_the_template_does_not_show_tools() -> None:
    formats = ReplyFormats.of(AUTO, with_template("{{ messages }}"))
    plain = SamplingParams()
    held = formats.asked(TOOLS, "auto", None).held(plain, PROMPT).constraint
    assert held is not None
    form = held.value["format"]
    assert (form["type"], form["stop_after_first"]) == ("triggered_tags", True)
    assert form["tags"][0]["content"]["json_schema"] == SCHEMA
    several = formats.asked(TOOLS, "auto", True).held(plain, PROMPT).constraint
    assert several is not None
    assert several.value["format"]["stop_after_first"] is False
    assert formats.asked(TOOLS, "none", None) is PLAIN_REPLY


@pytest.mark.parametrize(
    ("parser", "prompt", "markers"),
    [
        ("qwen3", "<think>\n", ("", "</think>")),
        ("qwen3", "<think>\n\n</think>\n\n", ("", "")),
        ("qwen3", "", ("<think>", "</think>")),
        ("deepseek_r1", "", ("", "</think>")),
        ("mistral", "", ("[THINK]", "[/THINK]")),
    ],
)
def test_a_constraint_holds_behind_the_reasoning(
    parser: str, prompt: str, markers: tuple[str, str]
) -> None:
    formats = ReplyFormats.of(ServerSettings(reasoning_parser=parser), tokenizer())
    ids = tokenizer().encode("The quick brown fox " + prompt, special=False)
    free, params = SamplingParams(), SamplingParams(structured_outputs={"regex": "a"})
    plain = formats.asked(None, None, None)
    assert not plain.may_hold(free)
    assert plain.may_hold(params)
    calls = formats.asked(TOOLS, "required", None)
    for held in (plain.held(params, ids), calls.held(free, ids)):
        constraint = held.constraint
        assert constraint is not None
        assert (constraint.reasoning_start, constraint.reasoning_end) == markers
    assert plain.held(free, ids) is free


@pytest.mark.parametrize(
    ("prompt", "found"),
    [
        ("<think>\n", [ReasoningDelta("a"), ContentDelta("b")]),
        ("<think>\n\n</think>\n\n", [ContentDelta("a</think>b")]),
        ("", [ContentDelta("a</think>b")]),
    ],
)
def test_the_end_of_the_prompt_says_where_reasoning_begins(
    prompt: str, found: Sequence[object]
) -> None:
    """With `enable_thinking`, a template opens the block or closes it."""
    formats = ReplyFormats.of(ServerSettings(reasoning_parser="qwen3"), tokenizer())
    ids = tokenizer().encode("The quick brown fox " * 9 + prompt, special=False)
    reader = ReplyReader(formats.asked(None, None, None), ids)
    assert reader.read(TextDelta(0, "a</think>b", (5,), finish_reason="stop")) == found


@pytest.mark.parametrize(
    ("prompt", "text", "reasoning"),
    [
        ("<think>\n", "a b</think>", "a b</think>"),
        ("<think>\n", "a b</think>\n\nc", "a b</think>"),
        ("<think>\n", "a b", "a b"),
        ("", "<think>a</think>b</think>", "<think>a</think>"),
        ("", "a</think>b", ""),
        ("<think>\n\n</think>\n\n", "a</think>b", ""),
    ],
)
def test_tokens_of_reasoning_are_counted(prompt: str, text: str, reasoning: str) -> None:
    def encode(text: str) -> tuple[int, ...]:
        return tuple(tokenizer().encode(text, special=False))

    formats = ReplyFormats.of(ServerSettings(reasoning_parser="qwen3"), tokenizer())
    answers = tuple(TextDelta(index, text, encode(text)) for index in range(2))
    output = RequestOutput("a", None, encode(prompt), answers, Usage(1, 1, 0), NO_TIMINGS)
    counted = formats.asked(None, None, None).reasoning_tokens([output])
    assert counted == 2 * len(encode(reasoning))


def test_each_choice_has_a_parser() -> None:
    reader = ReplyReader(ReplyParsing(reasoning=Qwen3Reasoning, decode=lambda _: ""), ())
    assert reader.read(TextDelta(0, "<think>a", (5,))) == [ReasoningDelta("a")]
    assert reader.read(TextDelta(1, "b", (5,))) == [ContentDelta("b")]
    assert reader.read(TextDelta(0, "c", (), finish_reason="length")) == [ReasoningDelta("c")]
    assert reader.calling == set()
