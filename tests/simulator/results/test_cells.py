"""Figures as text."""

import pytest

from paceline.simulator.results.cells import number


@pytest.mark.parametrize(
    ("value", "text"), [(None, "-"), (0.123, "0.12"), (12.34, "12.3"), (12345.6, "12,346")]
)
def test_numbers_have_as_many_digits_as_are_worth_reading(value: float | None, text: str) -> None:
    assert number(value) == text
