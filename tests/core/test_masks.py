"""Masks in packed bits, in the order of the lines that they are for."""

import numpy as np

from paceline.core.masks import MaskRows

BITS = np.array([[0b01], [0b10], [0b11]], np.int32)


def masks(*at: int) -> MaskRows:
    return MaskRows(np.arange(len(at)), np.array(at, np.int64), BITS)


def test_rows_in_order_are_not_copied() -> None:
    assert np.shares_memory(masks(1, 2).rows, BITS)
    assert masks(1, 2).rows.tolist() == [[2], [3]]
    assert masks().rows.shape == (0, 1)


def test_rows_in_another_order_are_picked() -> None:
    assert masks(2, 0, 0).rows.tolist() == [[3], [1], [1]]
    assert masks(2, 0, 1).allowed(3).tolist() == [
        [True, True, False],
        [True, False, False],
        [False, True, False],
    ]
