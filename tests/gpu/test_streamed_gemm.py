"""Products at the speed of the memory, against float32."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from paceline.runner.attention_backend import load
from paceline.runner.cuda.kernels.streamed_gemm import StreamedLinear
from paceline.runner.layers.linear import DenseLinear
from paceline.runner.weights.dummy import Dummy
from tests.gpu.support import ON_GPU, on_hopper, replayed, rows_of
from tests.runner.support import cells_of, filled_store, tiny

try:
    from paceline.runner.attention.triton import Triton
    from paceline.runner.cuda.graphs.capture import GraphMemory, recording
    from paceline.runner.cuda.model import CudaModel
except ImportError:
    pytest.skip("needs triton", allow_module_level=True)

pytestmark = ON_GPU

# Inputs and outputs: one round, two who share inputs, and a last processor with less to do.
SHAPES = [(5120, 34816), (17408, 5120), (4096, 4096 + 16 * 5)]
FLOOR = 3.0  # a length between those of the rows


def product_of(
    inputs: int, outputs: int, seed: int, is_gated: bool = False
) -> tuple[DenseLinear, StreamedLinear]:
    random = torch.Generator("cuda").manual_seed(seed)
    weight = torch.randn(outputs, inputs, device="cuda", generator=random) * inputs**-0.5
    dense = DenseLinear(weight, None, torch.bfloat16)
    return dense, StreamedLinear(dense, is_gated)


def close(got: Tensor, expected: Tensor) -> None:
    """By rows, in which a few wrong outputs would show."""
    assert torch.isfinite(got).all()
    assert ((got.float() - expected).norm(dim=1) / expected.norm(dim=1)).max() < 6e-3


@on_hopper
@pytest.mark.parametrize("rows", [1, 5, 63, 64, 65, 100, 128, 160, 192])
@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_every_outcome(inputs: int, outputs: int, rows: int) -> None:
    dense, streamed = product_of(inputs, outputs, rows)
    assert streamed.takes(rows, 192)
    assert not streamed.takes(rows, rows - 1)
    x = torch.randn(rows, inputs, device="cuda").bfloat16()
    expected = x.float() @ dense.weight.float()
    got = streamed(x)
    close(got, expected)
    assert torch.equal(got, streamed(x))  # in the same order every time
    before = torch.randn_like(got)
    total = before.clone()
    streamed.add_to(total, x)
    close(total, before.float() + expected)
    gate, up = expected.chunk(2, dim=1)
    close(streamed.gated(x, is_silu=True), F.silu(gate) * up)
    close(streamed.gated(x, is_silu=False), F.gelu(gate, approximate="tanh") * up)


@on_hopper
@pytest.mark.parametrize("rows", [1, 5, 63, 64, 65, 128, 192])
@pytest.mark.parametrize(("inputs", "outputs"), [(5120, 34816), (1024, 6144)])
def test_a_norm_inside(inputs: int, outputs: int, rows: int) -> None:
    """Of rows as different in length as can be, one of which is nothing."""
    dense, streamed = product_of(inputs, outputs, rows, is_gated=True)
    if inputs == 1024:
        assert not product_of(inputs, outputs, rows)[1].takes(rows, 192)  # too small by itself
        assert streamed.takes(rows, 192) == (rows <= 64)
    if not streamed.takes(rows, 192):
        return
    assert streamed.can_norm
    x = (
        torch.randn(rows, inputs, device="cuda")
        * torch.logspace(-3, 2, rows, device="cuda")[:, None]
    )
    if rows > 1:
        x[rows // 2] = 0.0
    x = x.bfloat16()
    long = (x.float().square().sum(dim=1, keepdim=True) + FLOOR**2).sqrt()
    gate, up = (x.float() / long @ dense.weight.float()).chunk(2, dim=1)
    for is_silu, expected in ((True, F.silu(gate)), (False, F.gelu(gate, approximate="tanh"))):
        got = streamed.gated(x, is_silu, FLOOR)
        assert rows == 1 or not got[rows // 2].any()
        kept = [row for row in range(rows) if rows == 1 or row != rows // 2]
        close(got[kept], (expected * up)[kept])
        assert torch.equal(got, streamed.gated(x, is_silu, FLOOR))
    if rows > 1:
        x[0] = float("nan")
        hurt = streamed.gated(x, False, FLOOR)
        assert hurt[0].isnan().all()
        assert torch.equal(hurt[1:], got[1:])


@on_hopper
def test_rows_do_not_see_each_other() -> None:
    _, streamed = product_of(5120, 5120, 1)
    x = torch.randn(70, 5120, device="cuda").bfloat16()
    apart = streamed(x)
    x[3] = float("nan")
    got = streamed(x)
    assert got[3].isnan().all()
    others = [row for row in range(70) if row != 3]
    assert torch.equal(got[others], apart[others])


@on_hopper
def test_a_chain_of_them_in_a_graph() -> None:
    """Each may start before the one in front has ended, and must not read its rows before."""
    products = [product_of(5120, 5120, seed) for seed in range(4)]
    x = torch.randn(64, 5120, device="cuda").bfloat16()

    def chain(start: Tensor) -> Tensor:
        for _, streamed in products:
            start = streamed(start)
        return start

    chain(x)
    with recording(GraphMemory()) as graph:
        found = chain(x)
    for seed in range(3):
        x.copy_(torch.randn(64, 5120, generator=torch.Generator().manual_seed(seed)))
        graph.replay()
        expected = x
        for dense, _ in products:
            expected = dense(expected)
        assert (found.float() - expected.float()).norm() / expected.float().norm() < 1e-2


def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What becomes of products that are streamed from now on."""
    ran: list[str] = []
    kept = StreamedLinear._run

    def run(self: StreamedLinear, outcome: Any, *given: Any) -> None:
        ran.append(outcome)
        kept(self, outcome, *given)

    monkeypatch.setattr(StreamedLinear, "_run", run)
    return ran


@on_hopper
def test_a_whole_model_is_the_same_with_and_without(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two layers of the width of a 14B model, at the numbers of rows where the ways part."""
    shape = {"num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128}
    shape |= {"hidden_size": 5120, "intermediate_size": 5120, "num_hidden_layers": 2}
    config = tiny(architectures=["Qwen3ForCausalLM"], **shape)
    source = Dummy(config, device="cuda")
    streaming = CudaModel.load(source, 64)
    ran = counted(monkeypatch)
    for least in ("LEAST_BYTES", "GATED_BYTES"):
        monkeypatch.setattr(f"paceline.runner.cuda.kernels.streamed_gemm.{least}", 1 << 60)
    library = CudaModel.load(source, 64)
    expected_runs = {5: 8, 64: 8, 65: 6, 128: 6, 129: 2, 192: 2, 193: 0}
    for rows, count in expected_runs.items():
        batch, blocks = rows_of([(1, 1 + row % 40) for row in range(rows)], 16)
        batch.tokens.copy_(torch.arange(rows) * 7 % config.vocab)
        found = []
        for model in (streaming, library):
            kv = filled_store(config, blocks, 16, dtype=torch.bfloat16, device="cuda")
            ran.clear()
            attention = load("triton").prepare(batch, kv)
            found.append(model.forward(batch, cells_of(batch, kv), kv, attention).float())
            assert len(ran) == (count if model is streaming else 0), rows
        got, expected = found
        assert ((got - expected).norm(dim=1) / expected.norm(dim=1)).max() < 2e-2, rows


@on_hopper
@pytest.mark.parametrize("rows", [5, 64, 65])
def test_layers_with_a_norm_inside_in_a_graph(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Six layers of the width of a 0.6B model; kernels start before those in front have ended."""
    shape = {"num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128}
    shape |= {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 6}
    config = tiny(architectures=["Qwen3ForCausalLM"], **shape)
    source = Dummy(config, device="cuda")
    model = CudaModel.load(source, 64)
    monkeypatch.setattr("paceline.runner.cuda.kernels.streamed_gemm.GATED_BYTES", 1 << 60)
    library = CudaModel.load(source, 64)
    ran = counted(monkeypatch)
    batch, blocks = rows_of([(1, 1 + row % 40) for row in range(rows)], 16)
    batch.tokens.copy_(torch.arange(rows) * 7 % config.vocab)
    kv = filled_store(config, blocks, 16, dtype=torch.bfloat16, device="cuda")
    cells = cells_of(batch, kv)
    held = Triton().prepare_graph(batch, kv, 16)
    expected = library.forward(batch, cells, kv, held).float()
    assert not ran
    model.forward(batch, cells, kv, held)
    assert ran == ["SILU"] * (6 if rows <= 64 else 0)
    first = replayed(lambda: model.forward(batch, cells, kv, held))
    assert ((first.float() - expected).norm(dim=1) / expected.norm(dim=1)).max() < 4e-2


def test_what_is_small_or_of_another_type_is_left_to_the_library() -> None:
    small = DenseLinear(torch.randn(1024, 1024, device="cuda"), None, torch.bfloat16)
    exact = DenseLinear(torch.randn(5120, 5120, device="cuda"), None, torch.float32)
    biased = DenseLinear(
        torch.randn(5120, 5120, device="cuda"), torch.ones(5120, device="cuda"), torch.bfloat16
    )
    assert not any(StreamedLinear(product).takes(8, 64) for product in (small, exact, biased))
