import pytest

from paceline.tools.calls import Reply, Tool, ToolCall
from paceline.tools.formats.llama3_json import Llama3JsonParser
from tests.tools.support import assert_splits_agree, call

LOOK = '{"name": "look", "parameters": {"q": 1}}'
FOUND = (call("look", '{"q": 1}'),)


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        (LOOK, None, FOUND),
        (f"<|python_tag|>{LOOK}", None, FOUND),
        (f"<|python_tag|> {LOOK};{LOOK}\n; {LOOK}", None, FOUND * 3),
        (f"{LOOK}; and so on", "; and so on", FOUND),
        (f"{LOOK} ; {{}}", "; {}", FOUND),
        (f"{LOOK}\n{LOOK}", None, FOUND * 2),
        (f"Sure: {LOOK}", "Sure:", FOUND),
        (f"function f() {{ return {LOOK}", "function f() { return", FOUND),
        ('<|python_tag|>{"name": "other"}', None, (call("other", "{}"),)),
        ('<|python_tag|>search.call(q="x")', '<|python_tag|>search.call(q="x")', ()),
        ('{"type": "function", ' + LOOK[1:], None, FOUND),
        ('{"name": "other", "parameters": {}}', '{"name": "other", "parameters": {}}', ()),
    ],
)
def test_calls_without_markers_name_a_known_tool(
    text: str, content: str | None, calls: tuple[ToolCall, ...]
) -> None:
    reply = assert_splits_agree(lambda: Llama3JsonParser([Tool("look")]), text)
    assert reply == Reply(content, None, calls)
