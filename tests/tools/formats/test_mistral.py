import re

import pytest

from paceline.tools.calls import Reply, ToolCall
from paceline.tools.formats.mistral import MistralParser
from tests.tools.support import assert_splits_agree, call

LOOK = '{"name": "look", "arguments": {"q": 1}}'
FOUND = (call("look", '{"q": 1}'),)


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        (f"[TOOL_CALLS] [{LOOK}]", None, FOUND),
        (f"[TOOL_CALLS][{LOOK}, {LOOK}]\n", None, FOUND * 2),
        (f"Sure.[TOOL_CALLS] [{LOOK}, {LOOK}", "Sure.", FOUND * 2),
        (f"[TOOL_CALLS]{LOOK}", None, FOUND),
        (f"[TOOL_CALLS] [{LOOK}, 5]", ", 5]", FOUND),
        ('[TOOL_CALLS]look[ARGS]{"q": 1}', None, FOUND),
        ('[TOOL_CALLS]look{"q": 1}[TOOL_CALLS]look[ARGS] {"q": 1} Done.', "Done.", FOUND * 2),
        ('[TOOL_CALLS] look\n{"q": 1}', None, FOUND),
        ('[TOOL_CALLS]look[CALL_ID]abc456789[ARGS]{"q": 1}', None, FOUND),
    ],
)
def test_lists_and_names(text: str, content: str | None, calls: tuple[ToolCall, ...]) -> None:
    assert assert_splits_agree(MistralParser, text) == Reply(content, None, calls)


def test_ids_have_the_form_that_the_templates_require() -> None:
    calls = MistralParser().whole(f"[TOOL_CALLS] [{LOOK}, {LOOK}]").calls
    assert all(re.fullmatch("[a-zA-Z0-9]{9}", each.id) for each in calls)
    assert calls[0].id != calls[1].id


def test_an_id_of_the_model_is_kept() -> None:
    text = '[TOOL_CALLS]look[CALL_ID]abc456789[ARGS]{"q": 1}'
    assert MistralParser().whole(text).calls[0].id == "abc456789"
