"""What every parser must do, on texts made of calls, of other text and of damage."""

import json
import random
from collections.abc import Callable, Sequence

import pytest

from paceline.tools.calls import CallDelta, Reply, Tool, ToolCall
from paceline.tools.formats.deepseek_v3 import DeepseekV3Parser
from paceline.tools.formats.glm45 import Glm45Parser
from paceline.tools.formats.hermes import HermesParser
from paceline.tools.formats.json_calls import JsonCallParser
from paceline.tools.formats.llama3_json import Llama3JsonParser
from paceline.tools.formats.mistral import MistralParser
from paceline.tools.formats.pythonic import PythonicParser
from paceline.tools.formats.qwen3_coder import Qwen3CoderParser
from paceline.tools.parser import ToolParser
from paceline.tools.reasoning_parser import DeepseekR1Reasoning, Qwen3Reasoning, ReasoningThenCalls
from paceline.tools.text_reader import Waiting
from paceline.tools.tool_use import NamedCallParser
from tests.tools.support import ARGUMENTS, TEXTS, Maker, assert_splits_agree, call, parsed

NAMES = ("look", "get_weather", "a.b-c")
KNOWN = [Tool(name) for name in NAMES]
MAKERS: dict[str, Maker] = {
    "hermes": HermesParser,
    "llama3_json": Llama3JsonParser,
    "mistral": MistralParser,
    "json": lambda: JsonCallParser(KNOWN),
    "deepseek_v3": DeepseekV3Parser,
    "qwen3_coder": Qwen3CoderParser,
    "glm45": Glm45Parser,
    "pythonic": lambda: PythonicParser(KNOWN),
    "named": lambda: NamedCallParser("look"),
    "deepseek_r1": DeepseekR1Reasoning,
    "qwen3": Qwen3Reasoning,
    "reasoning and calls": lambda: ReasoningThenCalls(Qwen3Reasoning(), HermesParser()),
}


def hermes(calls: Sequence[ToolCall]) -> str:
    return "\n".join(
        f'<tool_call>\n{{"name": "{each.name}", "arguments": {each.arguments}}}\n</tool_call>'
        for each in calls
    )


def llama(calls: Sequence[ToolCall]) -> str:
    return "; ".join(f'{{"name": "{each.name}", "parameters": {each.arguments}}}' for each in calls)


def mistral(calls: Sequence[ToolCall]) -> str:
    return f"[TOOL_CALLS] {array(calls)}"


def newer_mistral(calls: Sequence[ToolCall]) -> str:
    return "".join(f"[TOOL_CALLS]{each.name}[ARGS]{each.arguments}" for each in calls)


def array(calls: Sequence[ToolCall]) -> str:
    listed = (f'{{"name": "{each.name}", "arguments": {each.arguments}}}' for each in calls)
    return f"[{', '.join(listed)}]"


def deepseek(calls: Sequence[ToolCall]) -> str:
    listed = (
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{each.name}\n```json\n{each.arguments}\n```"
        "<｜tool▁call▁end｜>"
        for each in calls
    )
    return "<｜tool▁calls▁begin｜>" + "\n".join(listed) + "<｜tool▁calls▁end｜>"


def newer_deepseek(calls: Sequence[ToolCall]) -> str:
    listed = (
        f"<｜tool▁call▁begin｜>{each.name}<｜tool▁sep｜>{each.arguments}<｜tool▁call▁end｜>"
        for each in calls
    )
    return f"<｜tool▁calls▁begin｜>{''.join(listed)}<｜tool▁calls▁end｜>"


Writer = Callable[[Sequence[ToolCall]], str]
OTHER_FORMS = (
    "<tool_call>\n<function=look>\n<parameter=q>\n1\n</parameter>\n</function>\n</tool_call>",
    "<tool_call>look\n<arg_key>q</arg_key>\n<arg_value>1</arg_value>\n</tool_call>",
    "[look(q='a, b', z=[1, {'k': \"]\"}]), get_weather()]",
)
NOT_TOOLS = ("named", "deepseek_r1", "qwen3", "reasoning and calls")
WRITERS: dict[str, tuple[type[ToolParser], Writer]] = {
    "hermes": (HermesParser, hermes),
    "llama": (Llama3JsonParser, llama),
    "mistral": (MistralParser, mistral),
    "newer mistral": (MistralParser, newer_mistral),
    "json": (JsonCallParser, array),
    "deepseek": (DeepseekV3Parser, deepseek),
    "newer deepseek": (DeepseekV3Parser, newer_deepseek),
}


@pytest.mark.parametrize("form", WRITERS)
def test_calls_are_found_as_they_were_written(form: str) -> None:
    make, write = WRITERS[form]
    chance = random.Random(form)
    for _ in range(25):
        calls = tuple(
            call(chance.choice(NAMES), chance.choice(ARGUMENTS))
            for _ in range(chance.randint(1, 3))
        )
        before, after = chance.choice(TEXTS), chance.choice(TEXTS)
        reply = assert_splits_agree(make, before + write(calls) + after, tries=2)
        assert reply.calls == calls
        content = before + after.lstrip()
        assert reply.content == (content.rstrip() or None)
        assert all(json.loads(each.arguments) is not None for each in reply.calls)


@pytest.mark.parametrize("name", MAKERS)
def test_any_split_gives_the_same_reply(name: str) -> None:
    """Also of text that is cut off, and of text that is damaged."""
    chance = random.Random(name)
    for seed in range(25):
        calls = [call(chance.choice(NAMES), chance.choice(ARGUMENTS)) for _ in range(2)]
        text = chance.choice(TEXTS).join(
            [
                *("<think>", "hm </thi", "</think>"),
                *(write(calls) for _, write in WRITERS.values()),
                *OTHER_FORMS,
            ]
        )
        begin = chance.randrange(len(text) // 2)
        text = text[begin : chance.randrange(begin, len(text))]
        for _ in range(chance.randrange(3)):
            place = chance.randrange(len(text) + 1)
            text = text[:place] + chance.choice('"{}[]\\,:x<') + text[place:]
        assert_splits_agree(MAKERS[name], text, seed=seed, tries=2)


@pytest.mark.parametrize("name", [name for name in MAKERS if name not in NOT_TOOLS])
@pytest.mark.parametrize(
    "text",
    [
        *TEXTS,
        "<tool_call>oops no</tool_call>",
        "<tool_call>{'name': 'look'}</tool_call>",
        '<tool_call>{"name": 5, "arguments": {}}</tool_call>',
        '<tool_call>{"name": "look", "arguments": [1]}</tool_call>',
        '<tool_call>{"arguments": {"a": 1}}</tool_call>',
        '<tool_call>{"name": "look", "argu',
        '<tool_call>\n{"arguments": {"a": "',
        " <tool_call> <tool_call>",
        "[TOOL_CALLS] []",
        '[TOOL_CALLS] [{"a": 1}]',
        "[TOOL_CALLS]look[ARGS] 5",
        "[TOOL_CALLS]look",
        "[TOOL_CALLS][ARGS]",
        "<|python_tag|>print(1)",
        '{"name": "Ann", "age": 7}',
        '{"name": "look"}',
        '{"name": "look", "parameters": 7} ',
        "[[{}, {[",
        "{",
        "\n\n{}",
        "<function=>",
        "<tool_call><function=look>5",
        "<tool_call>look<arg_ke",
        "<tool_call>\n<function=look",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>look",
        "<｜tool▁calls▁begin｜>look",
        "[look]",
        "[look(1)]",
        "[lock(a=1)]",
        "[look (a=1)]",
    ],
)
def test_what_is_no_call_is_content_and_loses_nothing(name: str, text: str) -> None:
    assert assert_splits_agree(MAKERS[name], text) == Reply(text or None)


@pytest.mark.parametrize("form", WRITERS)
def test_arguments_are_streamed_as_they_arrive(form: str) -> None:
    make, write = WRITERS[form]
    arguments = '{"text": "one two", "more": {"a": [1]}}'
    text = write([call("look", arguments)])
    parser, seen = make(), ""
    for place, character in enumerate(text):
        for delta in parser.push(character):
            assert isinstance(delta, CallDelta)
            seen += delta.arguments
        so_far = text[text.index(arguments) : place + 1]
        assert seen == so_far[: len(arguments)]


@pytest.mark.parametrize("form", WRITERS)
def test_arguments_that_are_cut_off_stay_arguments(form: str) -> None:
    make, write = WRITERS[form]
    text = write([call("look", '{"text": "one two"}')])
    cut = text[: text.index("two")]
    assert assert_splits_agree(make, cut) == Reply(calls=(call("look", '{"text": "one '),))


@pytest.mark.parametrize("form", WRITERS)
def test_malformed_arguments_are_passed_on(form: str) -> None:
    make, write = WRITERS[form]
    calls = (call("look", "{'a': 1,, b c [}{]}"), call("look", "{}"))
    assert parsed(make, write(calls)).calls == calls


@pytest.mark.parametrize("form", WRITERS)
def test_only_the_first_call_is_reported_if_calls_must_not_be_parallel(form: str) -> None:
    parser, write = WRITERS[form]
    reply = parser(KNOWN, parallel=False).whole(
        write([call("look", '{"a": 1}'), call("look", '{"a": 2}')]) + " Done."
    )
    assert [each.arguments for each in reply.calls] == ['{"a": 1}']
    assert reply.content == "Done."


def test_text_is_withheld_only_while_it_may_be_a_marker() -> None:
    parser = HermesParser()
    assert [d.text for d in parser.push("a <") if not isinstance(d, CallDelta)] == ["a"]
    assert [d.text for d in parser.push("b") if not isinstance(d, CallDelta)] == [" <b"]


def test_a_text_of_markers_alone_is_content() -> None:
    for text in ('<tool_call>{"a":[' * 2_000, "<tool_call>{" * 2_000, "{[" * 2_000):
        for make in (HermesParser, Llama3JsonParser, JsonCallParser):
            assert make().whole(text).content == text


class FailingParser(ToolParser):
    """Its rules fail at the second marker, and end at the third."""

    def rules(self) -> Waiting[None]:
        yield from self.content_until("|")
        yield from self.reader.skip("|")
        self.reader.take()
        marker = yield from self.content_until("!", ".")
        if marker == "!":
            raise KeyError(marker)


@pytest.mark.parametrize("end", "!.")
def test_text_that_the_rules_leave_behind_is_content(
    end: str, caplog: pytest.LogCaptureFixture
) -> None:
    reply = assert_splits_agree(FailingParser, f"ab|cd {end} <tool_call> e ")
    assert reply == Reply(f"abcd {end} <tool_call> e ")
    assert ("FailingParser failed" in caplog.text) == (end == "!")
