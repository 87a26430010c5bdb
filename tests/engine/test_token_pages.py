"""Tokens in pages: what a row is given is what it returns."""

from random import Random

import numpy as np
import pytest

from paceline.engine.choice_rows import FIRST_PAGES, PAGE, TokenPages


@pytest.mark.parametrize("seed", range(8))
def test_rows_return_their_tokens_whatever_others_do(seed: int) -> None:
    random = Random(seed)
    pages, rows = TokenPages(), 40
    pages.grow(rows)
    expected: list[list[int]] = [[] for _ in range(rows)]
    for _ in range(400):
        chosen = random.sample(range(rows), random.randint(1, rows))
        width = random.choice([1, 1, 3])
        ids = np.array([[random.randrange(1000) for _ in range(width)] for _ in chosen], np.int32)
        count = np.array([random.randint(0, width) for _ in chosen], np.int32)
        pages.append(np.array(chosen), ids, count)
        for row, new, most in zip(chosen, ids.tolist(), count.tolist(), strict=True):
            expected[row] += new[:most]
        if random.random() < 0.1:
            row = random.randrange(rows)
            assert pages.take(row) == expected[row]
            expected[row] = []
    for row in range(rows):
        assert pages.has_tokens(row) == bool(expected[row])
        assert pages.take(row) == expected[row]
        assert pages.take(row) == []


def test_pages_are_used_again() -> None:
    pages = TokenPages()
    pages.grow(2)
    one, ids = np.array([1]), np.array([[7]], np.int32)
    for _ in range(3):
        for _ in range(FIRST_PAGES * PAGE):
            pages.append(one, ids, np.ones(1, np.int32))
        assert len(pages.take(1)) == FIRST_PAGES * PAGE
    assert len(pages._cells) == FIRST_PAGES * PAGE
