import pytest

from paceline.tools.calls import Reply, Tool, ToolCall
from paceline.tools.formats.hermes import HermesParser
from tests.tools.support import assert_splits_agree, call

LOOK = '{"name": "look", "arguments": {"q": 1}}'
FOUND = (call("look", '{"q": 1}'),)


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        (f"<tool_call>{LOOK}</tool_call>", None, FOUND),
        (f"\n\n<tool_call>\n{LOOK}\n</tool_call>\n", None, FOUND),
        (f"One.\n<tool_call>{LOOK}</tool_call>\nTwo. ", "One.\nTwo.", FOUND),
        (f"<tool_call>{LOOK}", None, FOUND),  # cut off, or without its last marker
        (f"<tool_call>{LOOK[:-1]}", None, FOUND),
        (f"<tool_call>{LOOK[:-1]}</tool_call>", None, FOUND),
        (f"<tool_call>{LOOK[:-1]}, </tool_call>!", ", </tool_call>!", FOUND),
        (f"<tool_call>{LOOK}}}</tool_call>", "}</tool_call>", FOUND),
        (f"<tool_call>{LOOK}\n{LOOK}</tool_call>", None, FOUND * 2),
        (f"<tool_call>{LOOK}, x</tool_call>", ", x</tool_call>", FOUND),
        (f"<tool_call>no<tool_call>{LOOK}</tool_call>", "<tool_call>no", FOUND),
        (f'<tool_call>{{"id": "7", {LOOK[1:]}</tool_call>', None, FOUND),
        (f'<tool_call>{LOOK[:-1]}, "id": 7, "x": [{{}}]}}</tool_call>', None, FOUND),
        (f'<tool_call>{LOOK[:-1]}, "id": "7', None, FOUND),
    ],
)
def test_calls_between_markers(text: str, content: str | None, calls: tuple[ToolCall, ...]) -> None:
    assert assert_splits_agree(HermesParser, text) == Reply(content, None, calls)


@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        ('{"arguments": {"q": 1}, "name": "look"}', '{"q": 1}'),
        ('{"name": "look", "parameters": {"q": 1}}', '{"q": 1}'),
        ('{"name": "look", "arguments": "{\\"q\\": \\"é\\"}"}', '{"q": "é"}'),
        ('{"arguments": "{}", "name": "look"}', "{}"),
        ('{"name": "look", "arguments": null}', "{}"),
        ('{"name": "look", "arguments": ""}', "{}"),
        ('{"name": "look"}', "{}"),
        ('{"n\\u0061me": "lo\\u006fk", "arguments": { }}', "{ }"),
        ('{"name": "look", "arguments": {"q": 1}, "arguments": {"q": 2}}', '{"q": 1}'),
    ],
)
def test_forms_of_one_call(written: str, arguments: str) -> None:
    text = f"<tool_call>{written}</tool_call>"
    expected = Reply(calls=(call("look", arguments),))
    assert assert_splits_agree(HermesParser, text) == expected


def test_an_unknown_name_is_a_call_all_the_same() -> None:
    assert HermesParser([Tool("other")]).whole(f"<tool_call>{LOOK}</tool_call>").calls
