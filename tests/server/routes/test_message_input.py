"""Blocks of Anthropic's messages become the fields and messages that chat templates know."""

from typing import Any

import pytest

from paceline.server.errors import ApiError
from paceline.server.routes.messages import chat_messages

TEXT = {"type": "text", "text": "Let me look."}
USE = {"type": "tool_use", "id": "t1", "name": "look", "input": {"city": "Zürich"}}
RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": "Rain."}
THINKING = {"type": "thinking", "thinking": "Hm.", "signature": ""}


def test_calls_thinking_and_results_are_shown_to_the_template() -> None:
    after = {"type": "text", "text": "And tomorrow?"}
    found = chat_messages(
        [
            {"role": "user", "content": "Will it rain?"},
            {"role": "assistant", "content": [THINKING, TEXT, USE]},
            {"role": "user", "content": [after, RESULT, {**RESULT, "content": [TEXT]}]},
            {"role": "assistant", "content": [USE]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1"}]},
        ]
    )
    function = {"name": "look", "arguments": '{"city": "Zürich"}'}
    calls = [{"id": "t1", "type": "function", "function": function}]
    assert found == [
        {"role": "user", "content": "Will it rain?"},
        {
            "role": "assistant",
            "content": [TEXT],
            "reasoning_content": "Hm.",
            "tool_calls": calls,
        },
        {"role": "tool", "tool_call_id": "t1", "content": "Rain."},
        {"role": "tool", "tool_call_id": "t1", "content": [TEXT]},
        {"role": "user", "content": [after]},
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "t1", "content": ""},
    ]


@pytest.mark.parametrize(
    ("role", "block"),
    [
        ("assistant", {**USE, "input": "{}"}),
        ("assistant", {**USE, "id": None}),
        ("assistant", {"type": "redacted_thinking", "data": "x"}),
        ("user", {**RESULT, "tool_use_id": 5}),
    ],
)
def test_blocks_that_are_malformed_are_refused(role: str, block: dict[str, Any]) -> None:
    with pytest.raises(ApiError) as refused:
        chat_messages([{"role": role, "content": [block]}])
    assert refused.value.param == "messages"
