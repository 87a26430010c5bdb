"""Ids that processes claim for their requests."""

import numpy as np

from paceline.server.scoreboard import REMEMBERED_IDS, RecentIds


def test_an_id_of_another_process_is_taken_for_a_while() -> None:
    rows = np.zeros((3, RecentIds.SIZE))
    first, second = RecentIds(rows, 0), RecentIds(rows, 1)
    assert first.claim("a")
    assert first.claim("a"), "a process knows its own ids by itself"
    assert not second.claim("a")
    assert not first.claim("a"), "now the other one has it too"
    for number in range(REMEMBERED_IDS):
        assert first.claim(f"{number}")
    assert RecentIds(rows, 2).claim("b")
    for number in range(REMEMBERED_IDS):
        second.claim(f"other {number}")
    assert first.claim("a")


def test_one_process_alone_needs_no_table() -> None:
    rows = np.zeros((1, RecentIds.SIZE))
    assert RecentIds(rows, 0).claim("a")
    assert not rows.any()
