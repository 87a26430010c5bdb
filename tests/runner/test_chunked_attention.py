"""Batches whose rows are cut at chunks."""

import torch

from paceline.runner.chunked_attention import cut
from tests.runner.support import Piece, batch_of

BLOCK, CHUNK = 2, 4


def test_rows_are_cut_where_chunks_begin() -> None:
    pieces = [
        Piece([1] * 5, 5, [3, 7, 8, 9, 2]),  # positions 5 to 9
        Piece([2], 3, [5, 4]),  # the last of its chunk
        Piece([3], 8, [6, 0, 1, 10, 11]),  # the first of its chunk
    ]
    found = cut(batch_of(pieces, BLOCK), CHUNK, BLOCK)
    assert found.row_start.tolist() == [0, 3, 5, 6, 7]
    assert found.context.tolist() == [4, 2, 4, 1]
    assert found.position.tolist() == [1, 2, 3, 0, 1, 3, 0]
    blocks = found.block_table[0]
    assert blocks[0].tolist() == [8, 9]
    assert (int(blocks[1, 0]), int(blocks[3, 0])) == (2, 11)
    assert blocks[2].tolist() == [5, 4]
    assert found.row_start.dtype == torch.int64
