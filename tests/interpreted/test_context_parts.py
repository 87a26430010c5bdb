"""The parts of contexts, as the kernel lists them, against what every row must have."""

from random import Random

import pytest
import torch

from paceline.runner.attention.triton import context_cut
from paceline.runner.batch import Batch
from paceline.runner.cuda.kernels.attention import context_parts
from paceline.runner.cuda.kernels.attention.context_parts import (
    CLASSES,
    FIXED,
    ContextCut,
    PartList,
    fixed_parts,
)

Fields = tuple[int, ...]


def batch_of(contexts: list[int]) -> Batch:
    nothing = torch.zeros(len(contexts), dtype=torch.int32)
    context = torch.tensor(contexts, dtype=torch.int32)
    return Batch(nothing, nothing, nothing, context, nothing, nothing, nothing)


def some_contexts(random: Random, rows: int) -> list[int]:
    longest = random.choice([1, 64, 700, 30_000])
    return [random.choice([1, 64, 65, random.randint(1, longest)]) for _ in range(rows)]


def listed(found: PartList) -> list[Fields]:
    """Fields of all parts; those without a row are behind the others."""
    rows = found.parts[:, 0].tolist()
    count = sum(row >= 0 for row in rows)
    assert all(row == -1 for row in rows[count:])
    return [tuple(part) for part in found.parts[:count, :6].tolist()]


def begin_of(part: int, tile: int) -> int:
    """The first cell of a tile, or of a part with fixed bounds."""
    if tile != FIXED:
        return part * tile
    at = 0
    for _ in range(part):
        at += max(256, (1 << at.bit_length()) // 16)
    return at


def tile_of(cell: int, tile: int) -> int:
    return cell // tile if tile != FIXED else fixed_parts(cell + 1) - 1


def check(parts: list[Fields], contexts: list[int], window: int, tile: int) -> None:
    """Parts of a row are adjacent, cover what it reads once, and know their number."""
    at = {row: [part for part in parts if part[0] == row] for row in range(len(contexts))}
    assert sum(map(len, at.values())) == len(parts)
    for row, context in enumerate(contexts):
        first = at[row][0][4]
        assert parts[first : first + len(at[row])] == at[row]
        assert {part[1:2] + part[4:] for part in at[row]} == {(context, first, len(at[row]))}
        begins = [begin_of(part[2], tile) for part in at[row]]
        first_cell = max(context - window, 0) if window else 0
        assert begins[0] == begin_of(tile_of(first_cell, tile), tile)
        assert [part[3] for part in at[row]] == [*begins[1:], context]
        assert all(begin < part[3] for begin, part in zip(begins, at[row], strict=True))


@pytest.mark.parametrize("seed", range(10))
def test_every_tile_is_in_one_part_and_long_parts_come_first(seed: int) -> None:
    random = Random(seed)
    rows, window = random.choice([1, 3, 9]), random.choice([0, 0, 1, 100])
    tile = random.choice([32, 64, FIXED])
    cut = ContextCut(random.choice([1, 4, 31]), random.choice([1, 4]), tile, 8)
    batch, bounds = batch_of([1] * rows), torch.zeros(1, dtype=torch.int32)
    is_bounded = random.random() < 0.5
    found = PartList(batch, bounds if is_bounded else None, window, cut)
    for many in (rows, rows // 2, 0) if is_bounded else (rows, rows):
        contexts = some_contexts(random, rows)
        batch.context.copy_(torch.tensor(contexts))
        bounds.fill_(many)
        found.lay_out()
        parts = listed(found)
        check(parts, contexts[:many], window, cut.tile)
        sizes = [tile_of(stop - 1, tile) + 1 - first for _, _, first, stop, _, _ in parts]
        tiles = sum(sizes)
        share = max(cut.least, -(-tiles // max(cut.spare, many // 2)))
        assert all(size <= share for size in sizes)
        whole = [sizes[part[4]] for part in parts]  # the first part is the largest of its row
        ranks = [-(-size * CLASSES // share) for size in whole]
        assert ranks == sorted(ranks, reverse=True)


def test_rows_may_be_more_than_the_kernel_looks_at_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(context_parts, "CHUNK", 2)
    contexts = [700, 3, 65, 30_000, 1]
    cut = context_cut(5, 1)
    found = PartList(batch_of(contexts), None, 0, cut)
    found.lay_out()
    check(listed(found), contexts, 0, cut.tile)
