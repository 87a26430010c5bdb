"""Attention on a GPU against the slow truth in float32, at the head shapes of real models."""

from dataclasses import dataclass
from random import Random

import pytest
import torch

from paceline.core.errors import ConfigError
from paceline.runner.attention.triton import Triton
from paceline.runner.attention_backend import load
from paceline.runner.models.config import HeadShape
from tests.gpu.support import ON_GPU, rows_of
from tests.runner.support import filled_store, spoil_passed, tiny

pytestmark = ON_GPU

DECODES = [(1, 1), (1, 40), (1, 3), (1, 17), (1, 16), (1, 700), (1, 33)]
CHUNKS = [(40, 40), (9, 30), (133, 370)]
DRAFTS = [(4, 20), (2, 20), (4, 21), (4, 4), (8, 290)]
MIXED = [(1, 9), (20, 20), (1, 600), (3, 12), (170, 265), (1, 1), (4, 50)]
HEADS = [(16, 8), (40, 8), (32, 8)]
ROWS_OF_EVERY_CUT = [1, 7, 8, 48, 96, 200, 256]  # with eight heads of keys


def known(name: str) -> bool:
    try:
        load(name)
    except ConfigError:
        return False
    return True


every_backend = pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.skipif(not known(name), reason=f"no {name}"))
        for name in ("triton", "triton_fixed", "flashinfer")
    ],
)


@dataclass(frozen=True)
class Shape:
    heads: int
    kv_heads: int
    head_dim: int
    block_size: int
    rank: int = 0  # of latent vectors, which are keys and values


def compare(
    name: str,
    counts: list[tuple[int, int]],
    shape: Shape,
    window: int | None = None,
    dtype: torch.dtype = torch.bfloat16,
    cap: float | None = None,
) -> None:
    batch, blocks = rows_of(counts, shape.block_size)
    config = tiny(
        num_hidden_layers=3,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
    )
    kept = [HeadShape(shape.kv_heads, shape.head_dim, shape.rank)] * 3
    kv = filled_store(config, blocks, shape.block_size, dtype=dtype, device="cuda", heads=kept)
    if name != "flashinfer":
        spoil_passed(batch, kv, counts, window)
    heads = torch.randn(batch.positions, shape.heads + 2, shape.head_dim, device="cuda")
    query = heads.to(dtype)[:, : shape.heads]  # a view into more, as a model has it
    prepared, truth = load(name).prepare(batch, kv), load("sdpa").prepare(batch, kv)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-2
    for layer in (2, 0):
        got = prepared.attend(query, layer, window, 0.09, cap).float()
        expected = truth.attend(query.float(), layer, window, 0.09, cap)
        values = shape.rank or shape.head_dim
        torch.testing.assert_close(got, expected[..., :values], rtol=tolerance, atol=tolerance)


@every_backend
@pytest.mark.parametrize("block_size", [16, 64])
@pytest.mark.parametrize(("heads", "kv_heads"), HEADS)
@pytest.mark.parametrize("counts", [DECODES, CHUNKS, DRAFTS, MIXED], ids=str)
def test_rows_of_every_kind(
    name: str, counts: list[tuple[int, int]], heads: int, kv_heads: int, block_size: int
) -> None:
    compare(name, counts, Shape(heads, kv_heads, 128, block_size))


@pytest.mark.parametrize("window", [7, 64, 300])
def test_triton_attends_within_windows(window: int) -> None:
    compare("triton", MIXED, Shape(16, 8, 128, 16), window)
    compare("triton", DECODES, Shape(16, 8, 128, 16), window)


@pytest.mark.parametrize("counts", [DECODES, CHUNKS, MIXED], ids=str)
@pytest.mark.parametrize("window", [None, 64])
def test_triton_caps_scores(counts: list[tuple[int, int]], window: int | None) -> None:
    for head_dim in (128, 256):
        compare("triton", counts, Shape(16, 8, head_dim, 16), window, cap=0.7)


@pytest.mark.parametrize("counts", [DECODES, CHUNKS, DRAFTS, MIXED], ids=str)
@pytest.mark.parametrize(
    "shape",
    [Shape(16, 1, 576, 16, 512), Shape(128, 1, 576, 16, 512), Shape(16, 2, 512, 16)],
    ids=str,
)
def test_triton_attends_with_latent_vectors_and_wide_heads(
    counts: list[tuple[int, int]], shape: Shape
) -> None:
    compare("triton", counts, shape)


@pytest.mark.skipif(not known("flashinfer"), reason="no flashinfer")
def test_flashinfer_declares_what_it_does_not_support() -> None:
    support = load("flashinfer").support
    declared = support.caps, support.sinks, support.windows, support.mixed_graphs
    assert declared == (False, False, False, False)


@every_backend
@pytest.mark.parametrize("rows", [1, 5, 64, 256])
def test_random_decodes(name: str, rows: int) -> None:
    random = Random(rows)
    compare(name, [(1, random.randint(1, 2000)) for _ in range(rows)], Shape(16, 8, 128, 16))


@pytest.mark.parametrize("counts", [DECODES, CHUNKS, MIXED], ids=str)
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(6, 2, 16), (9, 3, 64)])
def test_triton_has_every_shape_and_float32(
    counts: list[tuple[int, int]], heads: int, kv_heads: int, head_dim: int
) -> None:
    for block_size in (3, 16):
        compare("triton", counts, Shape(heads, kv_heads, head_dim, block_size), 11, torch.float32)


@pytest.mark.parametrize("rows", ROWS_OF_EVERY_CUT)
@pytest.mark.parametrize("window", [None, 50])
def test_triton_holds_decodes_whose_contexts_change(rows: int, window: int | None) -> None:
    """The same held batch twice, as a graph has it: longer contexts in the same memory."""
    random, shape = Random(rows), Shape(16, 8, 128, 16)
    contexts = [random.randint(1, 1800) for _ in range(rows)]
    batch, blocks = rows_of([(1, context) for context in contexts], shape.block_size)
    config = tiny(num_hidden_layers=2, num_attention_heads=16, num_key_value_heads=8, head_dim=128)
    kv = filled_store(config, blocks, shape.block_size, dtype=torch.bfloat16, device="cuda")
    held = Triton().prepare_graph(batch, kv, shape.heads)
    for longest in (1800, 300, 1):
        batch.context.copy_(torch.tensor([min(one, longest) for one in contexts]))
        batch.position.copy_(batch.context - 1)
        held.lay_out()
        query = torch.randn(rows, 16, 128, device="cuda", dtype=torch.bfloat16)
        truth = load("sdpa").prepare(batch, kv)
        for layer in (1, 0):
            got = held.attend(query, layer, window, 0.09).float()
            expected = truth.attend(query.float(), layer, window, 0.09)
            torch.testing.assert_close(got, expected, rtol=1e-2, atol=1e-2)
