import pytest

from paceline.tools.calls import Reply, Tool, ToolCall
from paceline.tools.formats.json_calls import JsonCallParser
from tests.tools.support import assert_splits_agree, call

LOOK = '{"name": "look", "parameters": {"q": 1}}'
FOUND = (call("look", '{"q": 1}'),)


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        (LOOK, None, FOUND),
        (f"[{LOOK}]", None, FOUND),
        (f" [ {LOOK} , {LOOK} ] ", None, FOUND * 2),
        (f"```json\n{LOOK}\n```", "```json\n```", FOUND),
        (f'[{{"a": 1}}, {LOOK}]', '[{"a": 1}, ]', FOUND),
        ('[{"name": "look"}]', '[{"name": "look"}]', ()),
        ('{"answer": {"name": "Ann"}}', '{"answer": {"name": "Ann"}}', ()),
        ("[1, 2]", "[1, 2]", ()),
    ],
)
def test_objects_and_arrays(text: str, content: str | None, calls: tuple[ToolCall, ...]) -> None:
    reply = assert_splits_agree(lambda: JsonCallParser([Tool("look")]), text)
    assert reply == Reply(content, None, calls)
