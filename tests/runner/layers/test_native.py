"""Products by compiled kernels: close to those of float32, and of no row's neighbours."""

import pytest
import torch
from torch import Tensor

from paceline.core.errors import ConfigError
from paceline.runner.attention.backend import load
from paceline.runner.kv_store import KVStore
from paceline.runner.layers.native import Native, quantised
from paceline.runner.models.model import Model
from paceline.runner.native.library import is_available
from paceline.runner.weights.dummy import Dummy
from tests.runner.support import Piece, batch_of, tiny

if not is_available():
    pytest.skip("needs a C compiler", allow_module_level=True)

SHAPES = [(5, 7), (64, 96), (33, 130), (1, 1), (48, 300)]  # around panels, depths and groups


def close(got: Tensor, expected: Tensor) -> bool:
    return bool((got - expected).norm() <= 0.02 * expected.norm())


@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
@pytest.mark.parametrize("rows", [1, 2, 3, 7, 8, 21])
@pytest.mark.parametrize("has_bias", [False, True])
def test_close_to_float32(outputs: int, inputs: int, rows: int, has_bias: bool) -> None:
    generator = torch.Generator().manual_seed(outputs + rows)
    weight = torch.randn(outputs, inputs, generator=generator)
    x = torch.randn(rows, inputs, generator=generator)
    bias = torch.randn(outputs, generator=generator) if has_bias else None
    product, expected = Native(weight, bias, torch.float32), torch.nn.functional.linear
    assert close(product(x), expected(x, weight, bias))
    total = torch.randn(rows, outputs, generator=generator)
    sum_expected = total + product(x)
    product.add_to(total, x)
    torch.testing.assert_close(total, sum_expected, rtol=1e-6, atol=1e-6)


def test_whole_weights_and_inputs_are_multiplied_exactly() -> None:
    """The largest weights and inputs in every place: sums are the largest there can be."""
    product = Native(torch.full((40, 1536), 127.0), None, torch.float32)
    for sign in (1.0, -1.0):
        got = product(torch.full((9, 1536), sign))
        torch.testing.assert_close(got, torch.full((9, 40), sign * 127 * 1536), rtol=1e-6, atol=0)


def test_a_row_is_the_same_bits_beside_any_others() -> None:
    product, x = Native(torch.randn(70, 200), None, torch.float32), torch.randn(70, 200)
    x[3] *= 1e4
    alone = torch.cat([product(row.unsqueeze(0)) for row in x])
    for rows in (2, 3, 8, 13, 32, 70):
        assert torch.equal(product(x[:rows]), alone[:rows])


def test_threads_share_the_work_and_change_nothing() -> None:
    product, x = Native(torch.randn(170, 200), None, torch.float32), torch.randn(9, 200)
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(product(x))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_rows_may_be_a_part_of_wider_ones() -> None:
    product, wide = Native(torch.randn(9, 24), None, torch.float32), torch.randn(5, 40)
    assert torch.equal(product(wide[:, 8:32]), product(wide[:, 8:32].contiguous()))


@pytest.mark.parametrize("scale", [0.0, 1e-38, 1e-20, 1e30])
def test_rows_of_any_size_give_numbers(scale: float) -> None:
    product = Native(torch.eye(8), None, torch.float32)
    x = torch.arange(-4.0, 4.0).unsqueeze(0) * scale
    torch.testing.assert_close(product(x), x, rtol=0.02, atol=1e-36)


def test_a_weight_of_zeros() -> None:
    whole, scale = quantised(torch.zeros(3, 4))
    assert not whole.any()
    assert scale.isfinite().all()


def test_only_float32() -> None:
    with pytest.raises(ConfigError, match="bfloat16"):
        Native(torch.zeros(2, 2), None, torch.bfloat16)


def test_a_model_gives_the_same_bits_alone_batched_and_in_chunks() -> None:
    model = Model.load(Dummy(tiny(hidden_size=64)), linear_kind=Native)
    prompts = [[(7 * row + n) % 61 for n in range(5 + 3 * row)] for row in range(5)]
    attention = load("native")

    def logits(pieces: list[Piece], kv: KVStore) -> Tensor:
        batch = batch_of(pieces, 4)
        return model.logits(model.forward(batch, kv, attention)[batch.sample_at])

    def blocks(row: int) -> list[int]:
        return list(range(5 * row, 5 * row + 5))

    kv = KVStore(model.config, 25, 4)
    together = logits([Piece(p, 0, blocks(row)) for row, p in enumerate(prompts)], kv)
    for row, prompt in enumerate(prompts):
        kv = KVStore(model.config, 25, 4)
        assert torch.equal(logits([Piece(prompt, 0, blocks(row))], kv)[0], together[row])
        kv = KVStore(model.config, 25, 4)
        pieces = [Piece(prompt[at : at + 2], at, blocks(row)) for at in range(0, len(prompt), 2)]
        chunked = [logits([piece], kv)[0] for piece in pieces]
        assert torch.equal(chunked[-1], together[row])
