import re
from typing import Any

import pytest

from paceline.core.errors import RequestError
from paceline.tools.calls import (
    NO_PARAMETERS,
    CallDelta,
    ContentDelta,
    NamedTool,
    ReasoningDelta,
    Reply,
    ReplyDelta,
    Tool,
    ToolCall,
    call_id,
    joined,
    merged,
    read_choice,
    read_tools,
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


SCHEMA = {"type": "object", "properties": {"q": {"type": "string"}}}
LOOK = {"name": "look", "description": "Looks it up.", "parameters": SCHEMA}
TOOLS = (Tool("look"), Tool("find"))


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {"not": schema}
    return schema


@pytest.mark.parametrize(
    "given",
    [
        {"type": "function", "function": LOOK},  # chats
        {"type": "function", **LOOK},  # responses
        {"name": "look", "description": "Looks it up.", "input_schema": SCHEMA},  # messages
        {"type": "custom", "name": "look", "description": "Looks it up.", "input_schema": SCHEMA},
    ],
)
def test_tools_are_read_in_the_form_of_each_api(given: dict[str, Any]) -> None:
    (tool,) = read_tools([given])
    assert tool == Tool("look", "Looks it up.", SCHEMA)
    assert tool.shown() == {"type": "function", "function": LOOK}


def test_what_a_client_leaves_out_is_not_shown() -> None:
    (tool,) = read_tools([{"type": "function", "function": {"name": "now", "strict": True}}])
    assert tool == Tool("now", strict=True)
    assert tool.shown() == {"type": "function", "function": {"name": "now"}}
    assert tool.schema == NO_PARAMETERS
    assert read_tools(None) == read_tools([]) == ()


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        (["look"], r"tools\[0\] must be an object with type 'function'"),
        ([{}], r"tools\[0\] must be an object with type 'function'"),
        ([{"type": "function"}], r"tools\[0\] must be an object"),
        ([{"type": "function", "function": "look"}], r"tools\[0\] must be an object"),
        ([{"type": "web_search"}], r"type 'web_search'; only 'function'"),
        ([{"type": "function", "function": {}}], "has the name None"),
        ([{"type": "function", "function": {"name": "a b"}}], "has the name 'a b'.*letters"),
        ([{"type": "function", "function": {"name": "x" * 129}}], "1 to 128 letters"),
        ([{"type": "function", "function": {"name": "é"}}], "has the name 'é'"),
        ([{"type": "function", "name": "a", "description": 5}], "description of the tool 'a'"),
        ([{"type": "function", "name": "a", "strict": 5}], "strict of the tool 'a'"),
        ([{"type": "function", "name": "a", "parameters": []}], "an object; it has the type list"),
        ([{"type": "function", "name": "a", "parameters": {"type": "array"}}], "describes 'array'"),
        ([{"name": "a", "input_schema": True}], "input_schema of the tool 'a' must be"),
        ([{"type": "function", "name": "a", "parameters": nested(100)}], "deeper than 100 levels"),
        ([{"type": "function", "name": "a"}] * 2, r"tools\[1\] has the name 'a', and so has"),
        ([{"type": "function", "name": f"a{n}"} for n in range(1025)], "more than 1024 entries"),
    ],
)
def test_malformed_tools_are_refused(given: list[Any], complaint: str) -> None:
    with pytest.raises(RequestError, match=complaint):
        read_tools(given)


def test_schemas_may_be_deep() -> None:
    assert read_tools([{"type": "function", "name": "a", "parameters": nested(99)}])


@pytest.mark.parametrize(
    ("given", "choice"),
    [
        (None, "auto"),
        ("none", "none"),
        ("auto", "auto"),
        ("required", "required"),
        ({"type": "any"}, "required"),
        ({"type": "auto", "disable_parallel_tool_use": True}, "auto"),
        ({"type": "none"}, "none"),
        ({"type": "function", "function": {"name": "find"}}, NamedTool("find")),
        ({"type": "function", "name": "find"}, NamedTool("find")),
        ({"type": "tool", "name": "find"}, NamedTool("find")),
    ],
)
def test_choices_are_read_in_the_form_of_each_api(given: Any, choice: Any) -> None:
    assert read_choice(given, TOOLS) == choice


def test_without_tools_there_is_no_choice() -> None:
    assert read_choice(None, ()) == "none"
    assert read_choice("none", ()) == "none"
    for given in ("required", {"type": "function", "function": {"name": "find"}}):
        with pytest.raises(RequestError, match="the request has no tools; add tools"):
            read_choice(given, ())


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ("always", "tool_choice is 'always'; it must be none, auto, required"),
        ({"type": "function"}, "tool_choice is {'type': 'function'}"),
        (5, "tool_choice is 5"),
        ({"type": "function", "function": {"name": "x"}}, "names 'x', which is not .*: look, find"),
    ],
)
def test_choices_that_cannot_be_met_are_refused(given: Any, complaint: str) -> None:
    with pytest.raises(RequestError, match=complaint):
        read_choice(given, TOOLS)
