from dataclasses import replace

import pytest
import torch

from paceline.runner.batch import Batch
from tests.runner.support import Piece, batch_of

SIZE, BLOCKS = 4, 10


@pytest.fixture
def batch() -> Batch:
    """A chunk, a decode and a chunk, as the drawing has them."""
    pieces = [Piece([1, 2, 3], 5, [7, 2]), Piece([4], 9, [1, 3, 5]), Piece([5, 6, 7], 0, [9])]
    return batch_of(pieces, SIZE)


def test_a_sound_batch(batch: Batch) -> None:
    batch.check(SIZE, BLOCKS)
    assert (batch.positions, batch.rows) == (7, 3)
    assert batch.row_start.tolist() == [0, 3, 4, 7]
    assert batch.context.tolist() == [8, 10, 3]
    assert batch.write_cell.tolist() == [[9, 10, 11, 21, 36, 37, 38]]
    assert batch.sample_at.tolist() == [2, 3, 6]


@pytest.mark.parametrize(
    "changes",
    [
        {"tokens": [1, 2, 3, 4, 5, 6]},
        {"position": [5, 6, 8, 9, 0, 1, 2]},
        {"row_start": [1, 3, 4, 7]},
        {"row_start": [0, 3, 3, 7]},
        {"row_start": [0, 4, 7]},
        {"context": [9, 10, 3]},
        {"context": [8, 10, 2]},
        {"write_cell": [[9, 10, 12, 21, 36, 37, 38]]},
        {"block_table": [[[7, 2, 10], [1, 3, 5], [9, 0, 0]]]},
        {"block_table": [[[7, 2, -1], [1, 3, 5], [9, 0, 0]]]},
        {"block_table": [[[7, 2, 0], [1, 3, 5]]]},
        {"sample_at": [7]},
    ],
    ids=str,
)
def test_a_batch_that_contradicts_itself(batch: Batch, changes: dict[str, list[int]]) -> None:
    broken = replace(batch, **{name: torch.tensor(value) for name, value in changes.items()})
    with pytest.raises(AssertionError):
        broken.check(SIZE, BLOCKS)


def test_two_rows_must_not_write_the_same_cell() -> None:
    with pytest.raises(AssertionError, match="written twice"):
        batch_of([Piece([1], 0, [3]), Piece([2], 0, [3])], SIZE).check(SIZE, BLOCKS)


def test_indices_are_integers(batch: Batch) -> None:
    with pytest.raises(AssertionError, match="are not integer types"):
        replace(batch, tokens=batch.tokens.float()).check(SIZE, BLOCKS)
