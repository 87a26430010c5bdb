"""The tiles of a step, as the kernel for prompts finds them, against a plain list."""

from random import Random

import pytest
import torch

from paceline.runner.batch import Batch
from paceline.runner.cuda.kernels.attention.prefill_attention import KEYS, PAIRS, TileList

Tile = tuple[int, int, int, int]  # first pair in the batch and in the sequence, pairs, row


def tiles_of(rows: list[tuple[int, int]], group: int) -> list[Tile]:
    found, start = list[Tile](), 0
    for row, (count, context) in enumerate(rows):
        if count > 1:
            pairs, first = count * group, (context - count) * group
            found += [
                (start * group + at, first + at, min(PAIRS, pairs - at), row)
                for at in range(0, pairs, PAIRS)
            ]
        start += count
    return found


def some_rows(random: Random, size: int) -> list[tuple[int, int]]:
    rows = [(1, random.randint(1, 900)) for _ in range(random.randint(0, 6))]
    for _ in range(random.choice([0, 1, 2, random.randint(0, 12)])):
        count = max(random.choice([2, size - 1, size, size + 1, random.randint(2, 700)]), 2)
        rows.append((count, count + random.choice([0, 5, 3000, 1_000_000])))
    return rows


@pytest.mark.parametrize("seed", range(60))
def test_every_tile_once_and_those_with_the_most_keys_first(seed: int) -> None:
    random = Random(seed)
    group = random.choice([1, 2, 3, 4, 5, 7, 8, 16])
    rows = some_rows(random, PAIRS // group)
    total = sum(count for count, _ in rows)
    positions = -(-max(total, 1) // 64) * 64 + random.choice([0, 64])
    room = len(rows) + random.randint(0, 4)
    longer = sum(count > 1 for count, _ in rows)  # a graph has room for more
    starts = torch.full((room + 1,), total, dtype=torch.int32)
    starts[: len(rows) + 1] = torch.tensor([0, *(count for count, _ in rows)]).cumsum(0)
    contexts = torch.zeros(room, dtype=torch.int32)
    contexts[: len(rows)] = torch.tensor([context for _, context in rows])
    nothing = torch.zeros(positions, dtype=torch.int32)
    batch = Batch(nothing, nothing, starts, contexts, nothing, nothing, nothing)
    bounds = torch.tensor([len(rows) - longer, len(rows)], dtype=torch.int32)
    found = TileList(batch, bounds, longer + random.choice([1, 8]), group)
    found.lay_out()
    listed = [tuple(tile) for tile in found.tiles[: int(found.count)].tolist()]
    assert sorted(listed) == sorted(tiles_of(rows, group))
    work = [((pairs - 1) // group) // KEYS for pairs in (at + some for _, at, some, _ in listed)]
    assert work == sorted(work, reverse=True)
