"""Multimodal items inside a prompt."""

from typing import Any

import pytest

from paceline.core.errors import RequestError
from paceline.core.item import Item, wrong_items


def test_items_end_within_the_prompt() -> None:
    assert wrong_items((), 3) == wrong_items((Item("x", 0, 3), Item("x", 2, 1)), 3) == ""
    assert "ends after the prompt of 3 tokens" in wrong_items((Item("x", 0, 1), Item("x", 2, 2)), 3)


@pytest.mark.parametrize(
    "fields",
    [(None, 0, 1), ("x", 0.0, 1), ("x", 0, "1"), ("x", -1, 1), ("x", 1, 0), ("x", 2, -1)],
)
def test_an_item_without_a_name_a_place_or_a_length_is_refused(fields: tuple[Any, ...]) -> None:
    with pytest.raises(RequestError, match="is no item"):
        Item(*fields)
