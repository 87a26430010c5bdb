import pytest

from paceline.tools.calls import ReasoningDelta, Reply
from paceline.tools.formats.hermes import HermesParser
from paceline.tools.reasoning_parser import (
    DeepseekR1Reasoning,
    MistralReasoning,
    Qwen3Reasoning,
    ReasoningParser,
    ReasoningThenCalls,
)
from tests.tools.support import assert_splits_agree, call

R1, QWEN = DeepseekR1Reasoning, Qwen3Reasoning


@pytest.mark.parametrize(
    ("parser", "text", "reasoning", "content"),
    [
        (R1, "Hm.\n</think>\n\nYes.", "Hm.", "Yes."),
        (R1, "<think>\nHm.\n\nWell.\n</think>\n\nYes. ", "Hm.\n\nWell.", "Yes. "),
        (R1, "Hm, < 5 </thin", "Hm, < 5 </thin", None),
        (R1, " Hm. ", "Hm. ", None),
        (R1, "</think>Yes.", None, "Yes."),
        (R1, "a</think>b</think>c", "a", "b</think>c"),
        (R1, "", None, None),
        (QWEN, "\n<think>\n\n</think>\n\nYes.", None, "Yes."),
        (QWEN, "<think>Hm.</think>", "Hm.", None),
        (QWEN, "<think>Größe 🦊", "Größe 🦊", None),
        (QWEN, " Yes. <think>Hm.</think>", None, " Yes. <think>Hm.</think>"),
        (QWEN, "Yes.</think>", None, "Yes.</think>"),
        (QWEN, " <thin", None, " <thin"),
        (QWEN, " ", None, " "),
        (MistralReasoning, "[THINK]Hm.[/THINK]Yes.", "Hm.", "Yes."),
    ],
)
def test_a_block_at_the_beginning_is_reasoning(
    parser: type[ReasoningParser], text: str, reasoning: str | None, content: str | None
) -> None:
    assert assert_splits_agree(parser, text) == Reply(content, reasoning)


@pytest.mark.parametrize(
    ("parser", "prompt", "text", "expected"),
    [
        (QWEN, "user\n<think>\n", "Hm.</think>Yes.", Reply("Yes.", "Hm.")),
        (R1, "user\n<think>\n\n</think>\n\n", "Yes.", Reply("Yes.")),
        (QWEN, "user\n<think>\n\n</think>\n\n", "<think> is a tag", Reply("<think> is a tag")),
    ],
)
def test_the_prompt_may_have_opened_or_closed_the_block(
    parser: type[ReasoningParser], prompt: str, text: str, expected: Reply
) -> None:
    assert assert_splits_agree(lambda: parser(prompt), text) == expected


def test_reasoning_is_streamed_as_it_arrives() -> None:
    parser = DeepseekR1Reasoning()
    assert parser.push("One ") == [ReasoningDelta("One")]
    assert parser.push("two<") == [ReasoningDelta(" two")]
    assert parser.push("3") == [ReasoningDelta("<3")]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            'I <tool_call> it.</think>\n<tool_call>{"name": "f", "arguments": {}}</tool_call>',
            Reply(None, "I <tool_call> it.", (call("f", "{}"),)),
        ),
        ("Hm.</think>Yes. <tool_call", Reply("Yes. <tool_call", "Hm.")),
        ("Hm.", Reply(None, "Hm.")),
    ],
)
def test_calls_are_looked_for_after_the_reasoning(text: str, expected: Reply) -> None:
    def make() -> ReasoningThenCalls:
        return ReasoningThenCalls(DeepseekR1Reasoning(), HermesParser())

    assert assert_splits_agree(make, text) == expected


def test_the_markers_of_a_block_that_may_come() -> None:
    for inside in (DeepseekR1Reasoning(), Qwen3Reasoning("…<think>\n")):
        assert inside.markers == ("", "</think>")
    assert Qwen3Reasoning().markers == ("<think>", "</think>")
    assert Qwen3Reasoning("<think>\n\n</think>\n\n").markers is None
