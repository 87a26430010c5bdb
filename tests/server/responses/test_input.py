"""The items of an input become the messages that chat templates know."""

from typing import Any

import pytest

from paceline.server.errors import ApiError
from paceline.server.responses.input import messages

USER = {"role": "user", "content": "Will it rain?"}
CALL = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}
SHOWN = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "Yes."}
REASONING = {"type": "reasoning", "id": "r", "summary": [], "content": [{"text": "Hm."}]}
ANSWER = {
    "type": "message",
    "role": "assistant",
    "content": [{"type": "output_text", "text": "Let me look."}],
}


def test_what_the_assistant_did_in_one_turn_is_one_message() -> None:
    second = {**CALL, "call_id": "c2"}
    found = messages([USER, REASONING, ANSWER, CALL, second, OUTPUT, REASONING, CALL, OUTPUT])
    assert found == [
        USER,
        {
            "role": "assistant",
            "reasoning_content": "Hm.",
            "content": "Let me look.",
            "tool_calls": [SHOWN, {**SHOWN, "id": "c2"}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "Yes."},
        {"role": "assistant", "reasoning_content": "Hm.", "tool_calls": [SHOWN]},
        {"role": "tool", "tool_call_id": "c1", "content": "Yes."},
    ]


def test_messages_of_their_own_stay_apart() -> None:
    found = messages([ANSWER, ANSWER, CALL, ANSWER, USER, USER])
    assert [len(one.get("tool_calls", ())) for one in found] == [0, 1, 0, 0, 0]


def test_an_output_and_a_summary_may_be_parts() -> None:
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    summed = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "s"}]}
    found = messages([summed, CALL, {**OUTPUT, "output": parts}])
    assert [one.get("reasoning_content") for one in found] == ["s", None]
    assert found[1]["content"] == "ab"


@pytest.mark.parametrize(
    "item",
    [
        {"type": "function_call", "name": "look", "arguments": "{}"},
        {**CALL, "arguments": {}},
        {**OUTPUT, "call_id": None},
        {**OUTPUT, "output": 5},
        {"type": "reasoning", "content": "a"},
        {"type": "reasoning", "content": ["a"]},
        {"type": "web_search_call"},
        {"type": "message"},
    ],
)
def test_items_that_are_malformed_are_refused(item: dict[str, Any]) -> None:
    with pytest.raises(ApiError) as refused:
        messages([USER, item])
    assert refused.value.param == "input"
