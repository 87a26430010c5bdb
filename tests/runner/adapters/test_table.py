"""Places of adapters on the device."""

import numpy as np
import pytest

from paceline import Request
from paceline.core.plan import Admitted, Plan, Rows
from paceline.runner.adapters.host import AdapterTable

NO_ROWS = Rows(*(np.empty(0, np.int32) for _ in range(8)))  # pyright: ignore[reportArgumentType]


def plan(released: tuple[int, ...] = (), **admitted: int) -> Plan:
    """Slots by the name of their adapter; "_" is none."""
    new = tuple(
        Admitted(
            slot, Request("a", [1], adapter=name.strip("_")), np.ones(1, np.int32), 0, (), False
        )
        for name, slot in admitted.items()
    )
    return Plan(0, NO_ROWS, np.empty(0, np.int32), admitted=new, released=released)


@pytest.fixture
def filled() -> list[tuple[int, str]]:
    return []


@pytest.fixture
def table(filled: list[tuple[int, str]]) -> AdapterTable:
    return AdapterTable(2, 4, lambda index, identity: filled.append((index, identity)))


def test_slots_of_one_adapter_share_its_index(
    table: AdapterTable, filled: list[tuple[int, str]]
) -> None:
    assert not table.apply(plan(_=3))
    assert not table.any_used
    assert table.apply(plan(x=0))
    assert table.apply(plan(y=1, x=2))
    assert table.of_slot.tolist() == [0, 1, 0, -1]
    assert filled == [(0, "x"), (1, "y")]


def test_an_adapter_stays_until_its_index_is_needed(
    table: AdapterTable, filled: list[tuple[int, str]]
) -> None:
    table.apply(plan(x=0, y=1))
    table.apply(plan(released=(0, 1)))
    assert not table.any_used
    table.apply(plan(x=3))  # it is still there
    table.apply(plan(z=0))  # y is the least recently used
    assert filled == [(0, "x"), (1, "y"), (1, "z")]
    assert table.of_slot.tolist() == [1, -1, -1, 0]


def test_a_slot_may_change_hands_within_a_plan(
    table: AdapterTable, filled: list[tuple[int, str]]
) -> None:
    table.apply(plan(x=0, y=1))
    table.apply(plan(released=(0,), z=0))
    assert filled[-1] == (0, "z")
    assert table.of_slot.tolist() == [0, 1, -1, -1]


def test_more_adapters_than_table_are_a_mistake_of_the_scheduler(table: AdapterTable) -> None:
    table.apply(plan(x=0, y=1))
    with pytest.raises(AssertionError, match="max_loras"):
        table.apply(plan(z=2))
