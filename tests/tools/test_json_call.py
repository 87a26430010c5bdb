import pytest

from paceline.tools.json_call import JsonExtent
from tests.tools.support import ARGUMENTS, splits


@pytest.mark.parametrize("value", [*ARGUMENTS, "[]", '["a]", {"b": "[{"}]', '"a\\"b\\\\"', '""'])
def test_a_value_ends_with_its_last_character(value: str) -> None:
    for pieces in splits(value + ' "rest}"]', seed=1, tries=3):
        extent, read = JsonExtent(), 0
        for piece in pieces:
            read += extent.end(piece, 0)
        assert extent.closed
        assert read == len(value)


@pytest.mark.parametrize("value", ["{", '{"a', '{"a\\', '"a\\"', "[{}"])
def test_a_value_that_is_cut_off_is_not_closed(value: str) -> None:
    extent = JsonExtent()
    assert extent.end(value, 0) == len(value)
    assert not extent.closed
