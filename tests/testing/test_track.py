"""What the oracle's device knows of one slot."""

import numpy as np
import pytest

from paceline.core.plan import NO_BLOCK, Admitted
from paceline.core.request import Request
from paceline.testing.reference import Track, digest_of


def track() -> Track:
    request = Request("a", [5, 6, 7])  # pyright: ignore[reportArgumentType]
    tokens = np.array([5, 6, 7], np.int32)
    return Track.of(Admitted(0, request, tokens, 3, (4, 5), resumed=False, more=((NO_BLOCK, 8),)))


def test_a_track_has_a_table_for_each_group() -> None:
    made = track()
    assert (made.table, made.tables) == ([4, 5], [[4, 5], [NO_BLOCK, 8]])
    assert [made.block(1, index) for index in range(3)] == [NO_BLOCK, 8, NO_BLOCK]
    assert made.digests[-1] == digest_of(made.request, [])


def test_an_entry_is_written_once() -> None:
    made = track()
    made.map(1, 3, 9)
    assert made.tables == [[4, 5], [NO_BLOCK, 8, NO_BLOCK, 9]]
    with pytest.raises(AssertionError, match="'a' maps block 3 twice"):
        made.map(1, 3, 10)
