import pytest

from paceline.tools.calls import Reply
from paceline.tools.tool_use import NamedCallParser
from tests.tools.support import ARGUMENTS, assert_splits_agree, call


@pytest.mark.parametrize("arguments", ARGUMENTS)
def test_all_text_is_the_arguments_of_the_call(arguments: str) -> None:
    reply = assert_splits_agree(lambda: NamedCallParser("look"), f"\n {arguments}\n\n")
    assert reply == Reply(calls=(call("look", arguments),))


def test_without_text_there_is_no_call() -> None:
    assert assert_splits_agree(lambda: NamedCallParser("look"), " \n") == Reply()
