"""What holds for every attention backend: the same numbers as a plain reference, whatever the
rows. A new file in `paceline.runner.attention` is found and judged without being named here;
`PACELINE_ATTENTION="package.module.Class …"` adds backends from elsewhere.
"""

import os
import pkgutil
from dataclasses import dataclass, replace
from random import Random

import pytest
import torch
from torch import Tensor

import paceline.runner.attention
from paceline.runner.attention_backend import load
from paceline.runner.batch import Batch
from paceline.runner.kv_store import KVStore
from paceline.runner.models.config import HeadShape
from tests.runner.support import Blocks, Piece, batch_of, spoil_passed, tiny

NEEDS_CARD = {
    "flashinfer",
    "triton",
    "triton_fixed",
}  # tests/gpu judges these, in the precision they are for


def found() -> list[str]:
    modules = (module.name for module in pkgutil.iter_modules(paceline.runner.attention.__path__))
    own = [name for name in modules if name not in NEEDS_CARD]
    return [*own, *os.environ.get("PACELINE_ATTENTION", "").split()]


every_backend = pytest.mark.parametrize("name", found())


def backends_with(feature: str) -> pytest.MarkDecorator:
    """The backends that declare a feature. Models that need it are refused for all others."""
    able = [name for name in found() if getattr(load(name).support, feature)]
    return pytest.mark.parametrize("name", able)


DECODES = [(1, 1), (1, 40), (1, 3), (1, 17), (1, 16), (1, 200), (1, 33)]
CHUNKS = [(40, 40), (9, 30), (33, 70)]
DRAFTS = [(4, 20), (2, 20), (4, 21), (4, 4), (8, 90)]
MIXED = [(1, 9), (20, 20), (1, 60), (3, 12), (17, 65), (1, 1), (4, 50)]


@dataclass(frozen=True)
class Shape:
    heads: int
    kv_heads: int
    head_dim: int
    block_size: int
    rank: int = 0  # cells have one vector, a key, whose first numbers are the value


def store(shape: Shape, blocks: int, dtype: torch.dtype = torch.float32) -> KVStore:
    """Memory in which every cell holds something, as it does after a while of use."""
    config = tiny(
        num_hidden_layers=3,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
    )
    heads = [HeadShape(shape.kv_heads, shape.head_dim, shape.rank)] * config.layers
    kv = KVStore(config, blocks, shape.block_size, dtype, heads=heads)
    kv.content.normal_(generator=torch.Generator().manual_seed(1))
    return kv


def rows_of(counts: list[tuple[int, int]], block_size: int) -> tuple[Batch, int]:
    """Rows of (count, context), and the blocks there must be."""
    total = sum(-(-context // block_size) for _, context in counts) + 3
    blocks = Blocks(total, block_size)
    pieces = [
        Piece([0] * count, context - count, blocks.take(context)) for count, context in counts
    ]
    batch = batch_of(pieces, block_size)
    batch.check(block_size, total)
    return batch, total


def reference(
    query: Tensor,
    batch: Batch,
    kv: KVStore,
    layer: int,
    window: int | None,
    scale: float,
    cap: float | None = None,
    *,
    sinks: Tensor | None = None,
) -> Tensor:
    """Position by position, as the definition goes."""
    out = torch.empty(query.shape)
    group = query.shape[1] // kv.kv_heads
    row = -1
    for index, position in enumerate(batch.position.tolist()):
        row += index == int(batch.row_start[row + 1])
        first = 0 if window is None else max(position - window + 1, 0)
        seen = torch.arange(first, int(batch.read_to(window)[index]))
        blocks = batch.block_table[0, row, seen // kv.block_size]
        cells = kv.content[blocks, layer, seen % kv.block_size].float()
        keys, values = (  # [seen, heads, head_dim]
            part.repeat_interleave(group, 1)
            for part in (cells[:, : kv.kv_heads], cells[:, -kv.kv_heads :])
        )
        scores = (keys * query[index].float()).sum(-1) * scale  # [seen, heads]
        scores = scores if cap is None else cap * (scores / cap).tanh()
        scores = scores if sinks is None else torch.cat((scores, sinks[None]))
        out[index] = (scores.softmax(0)[: len(seen), :, None] * values).sum(0)
    return out


def compare(
    name: str,
    counts: list[tuple[int, int]],
    shape: Shape,
    window: int | None,
    cap: float | None = None,
    has_sinks: bool = False,
) -> None:
    batch, blocks = rows_of(counts, shape.block_size)
    kv = store(shape, blocks)
    heads = torch.randn(batch.positions, shape.heads + 2, shape.head_dim)
    query = heads[:, : shape.heads]  # a view into more, as a model has it
    sinks = torch.randn(shape.heads) if has_sinks else None
    spoil_passed(batch, kv, counts, window)
    prepared = load(name).prepare(batch, kv)
    before = kv.content.view(torch.int32).clone()
    expected = {
        layer: reference(query, batch, kv, layer, window, 0.3, cap, sinks=sinks) for layer in (0, 2)
    }
    for layer in (2, 0, 2):
        got = prepared.attend(query, layer, window, 0.3, cap, sinks)
        torch.testing.assert_close(got, expected[layer], rtol=1e-4, atol=1e-5)
    assert torch.equal(kv.content.view(torch.int32), before), "attention only reads"


@every_backend
@pytest.mark.parametrize("counts", [DECODES, CHUNKS, DRAFTS, MIXED], ids=str)
@pytest.mark.parametrize("window", [None, 1, 7, 64])
def test_rows_of_every_kind(name: str, counts: list[tuple[int, int]], window: int | None) -> None:
    compare(name, counts, Shape(6, 2, 16, 8), window)


@every_backend
@pytest.mark.parametrize("block_size", [1, 3, 16, 128])
def test_blocks_of_every_size(name: str, block_size: int) -> None:
    compare(name, MIXED, Shape(4, 2, 8, block_size), None)
    compare(name, MIXED, Shape(4, 2, 8, block_size), 10)


@every_backend
@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (5, 5), (8, 1), (9, 3)])
def test_heads_that_share(name: str, heads: int, kv_heads: int) -> None:
    compare(name, MIXED, Shape(heads, kv_heads, 8, 4), None)


@backends_with("latents")
@pytest.mark.parametrize("counts", [DECODES, CHUNKS, DRAFTS], ids=str)
def test_cells_of_one_vector(name: str, counts: list[tuple[int, int]]) -> None:
    compare(name, counts, Shape(20, 1, 24, 8, rank=16), None)


@backends_with("whole_images")
@pytest.mark.parametrize("window", [None, 7])
def test_positions_of_an_image_read_each_other(name: str, window: int | None) -> None:
    counts, shape = [(40, 40), (9, 30), (1, 12), (33, 70), (6, 20)], Shape(6, 2, 16, 8)
    batch, blocks = rows_of(counts, shape.block_size)
    ends = batch.position + 1
    for first, end in ((3, 25), (40, 49), (60, 70), (83, 89)):  # indices in the batch
        ends[first:end] = batch.position[end - 1] + 1
    kv = store(shape, blocks)
    query = torch.randn(batch.positions, shape.heads, shape.head_dim)
    for ends_in_windows in (False, True):
        batch = replace(batch, ends=ends, ends_in_windows=ends_in_windows)
        got = load(name).prepare(batch, kv).attend(query, 1, window, 0.3)
        expected = reference(query, batch, kv, 1, window, 0.3)
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


@every_backend
@pytest.mark.parametrize("counts", [DECODES, CHUNKS, MIXED], ids=str)
def test_scores_are_capped(name: str, counts: list[tuple[int, int]]) -> None:
    compare(name, counts, Shape(4, 2, 16, 8), None, cap=0.7)
    compare(name, counts, Shape(4, 2, 16, 8), 7, cap=0.7)


@every_backend
@pytest.mark.parametrize("counts", [DECODES, CHUNKS, DRAFTS], ids=str)
def test_sinks_take_weight_and_have_no_value(name: str, counts: list[tuple[int, int]]) -> None:
    compare(name, counts, Shape(6, 2, 16, 8), None, has_sinks=True)
    compare(name, counts, Shape(6, 2, 16, 8), 7, has_sinks=True)


@every_backend
@pytest.mark.parametrize("seed", range(4))
def test_random_rows(name: str, seed: int) -> None:
    random = Random(seed)
    contexts = [random.randint(1, random.choice([4, 30, 120])) for _ in range(12)]
    counts = [(random.choice([1, 1, random.randint(1, context)]), context) for context in contexts]
    window = random.choice([None, random.randint(1, 40)])
    compare(name, counts, Shape(4, 2, 8, random.randint(1, 20)), window)


@every_backend
def test_a_row_may_share_blocks_with_others(name: str) -> None:
    shape = Shape(4, 2, 8, 4)
    kv = store(shape, 8)
    pieces = [Piece([0], 9, [5, 1, 2]), Piece([0], 10, [5, 1, 6]), Piece([0, 0], 8, [5, 1, 7])]
    batch = batch_of(pieces, 4)
    query = torch.randn(4, 4, 8)
    got = load(name).prepare(batch, kv).attend(query, 1, None, 0.5)
    torch.testing.assert_close(got, reference(query, batch, kv, 1, None, 0.5))


@every_backend
def test_many_rows_fill_more_than_one_scratch(name: str) -> None:
    """Enough context that no backend gathers it all at once."""
    compare(name, [(1, 60 + n) for n in range(40)], Shape(4, 2, 64, 16), None)


@every_backend
def test_neighbours_whose_contexts_are_in_no_order(name: str) -> None:
    compare(name, [(1, 30), (1, 20), (1, 28), (1, 25)], Shape(4, 2, 8, 4), None)


@every_backend
def test_a_window_at_the_end_of_the_longest_table(name: str) -> None:
    """It spans two blocks, and three of the row beside it, whose table has more to come."""
    compare(name, [(1, 96), (1, 20)], Shape(4, 2, 8, 8), window=16)


@every_backend
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_store_and_queries_of_another_type(name: str, dtype: torch.dtype) -> None:
    shape = Shape(4, 2, 16, 8)
    batch, blocks = rows_of(MIXED, 8)
    kv = store(shape, blocks, torch.bfloat16)
    query = torch.randn(batch.positions, 4, 16).to(dtype)
    got = load(name).prepare(batch, kv).attend(query, 0, 11, 0.25)
    assert got.dtype == dtype
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    expected = reference(query, batch, kv, 0, 11, 0.25)
    torch.testing.assert_close(got.float(), expected, rtol=tolerance, atol=tolerance)


def test_the_backends_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {"sdpa", "paged"} <= set(found())
    monkeypatch.setenv("PACELINE_ATTENTION", "some.module.Backend")
    assert found()[-1] == "some.module.Backend"
