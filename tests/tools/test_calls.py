import re

from paceline.tools.calls import (
    CallDelta,
    ContentDelta,
    ReasoningDelta,
    Reply,
    ReplyDelta,
    ToolCall,
    call_id,
    joined,
    merged,
    short_call_id,
)

DELTAS: list[ReplyDelta] = [
    ReasoningDelta("a"),
    ReasoningDelta("b"),
    ContentDelta("c"),
    CallDelta(0, "", "i", "f"),
    CallDelta(0, "{"),
    CallDelta(0, "}"),
    CallDelta(1, "{}", "j", "g"),
    ContentDelta("d"),
    ContentDelta("e"),
]


def test_deltas_add_up_to_a_reply() -> None:
    reply = Reply("cde", "ab", (ToolCall("i", "f", "{}"), ToolCall("j", "g", "{}")))
    assert joined(DELTAS) == joined(merged(DELTAS)) == reply
    assert joined([]) == Reply()


def test_neighbours_of_one_kind_become_one() -> None:
    assert merged(DELTAS) == [
        ReasoningDelta("ab"),
        ContentDelta("c"),
        CallDelta(0, "{}", "i", "f"),
        CallDelta(1, "{}", "j", "g"),
        ContentDelta("de"),
    ]


def test_ids_are_new_each_time() -> None:
    assert re.fullmatch("call_[0-9a-f]{24}", call_id())
    assert re.fullmatch("[a-zA-Z0-9]{9}", short_call_id())
    assert len({call_id(), call_id(), short_call_id(), short_call_id()}) == 4
