"""Products at the speed of the memory, against float32."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from paceline.runner.attention.triton import Triton
from paceline.runner.attention_backend import load
from paceline.runner.cuda.gemm.linear_kernel import LinearWeights, Use
from paceline.runner.cuda.gemm.streamed_gemm import Streamed
from paceline.runner.cuda.graphs.capture import GraphMemory, recording
from paceline.runner.cuda.model import CudaModel
from paceline.runner.weights.dummy import Dummy
from tests.gpu.linears import weights_of
from tests.gpu.support import ON_GPU, on_hopper, replayed, rows_of
from tests.runner.support import cells_of, filled_store, tiny

pytestmark = ON_GPU

# Inputs and outputs: one round, two who share inputs, and a last processor with less to do.
SHAPES = [(5120, 34816), (17408, 5120), (4096, 4096 + 16 * 5)]
FLOOR = 3.0  # a length between those of the rows


def weights(inputs: int, outputs: int, seed: int) -> tuple[Tensor, LinearWeights]:
    random = torch.Generator("cuda").manual_seed(seed)
    weight = torch.randn(outputs, inputs, device="cuda", generator=random) * inputs**-0.5
    weight = weight.bfloat16()
    return weight, weights_of(weight)


def most_rows(given: LinearWeights, use: Use) -> int:
    kernel = Streamed.of(given, use)
    return 0 if kernel is None else kernel.most_rows


def close(got: Tensor, expected: Tensor) -> None:
    """By rows, in which a few wrong outputs would show."""
    assert torch.isfinite(got).all()
    assert ((got.float() - expected).norm(dim=1) / expected.norm(dim=1)).max() < 6e-3


@on_hopper
@pytest.mark.parametrize("rows", [1, 5, 63, 64, 65, 100, 128, 160, 192])
@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_every_outcome(inputs: int, outputs: int, rows: int) -> None:
    weight, given = weights(inputs, outputs, rows)
    assert [most_rows(given, use) for use in Use] == [0, 64, 192, 128]
    streamed = Streamed.of(given, Use.ADDED)
    assert streamed is not None
    x = torch.randn(rows, inputs, device="cuda").bfloat16()
    expected = x.float() @ weight.float().t()
    got = streamed.plain(x)
    close(got, expected)
    assert torch.equal(got, streamed.plain(x))  # in the same order every time
    before = torch.randn_like(got)
    total = before.clone()
    streamed.add_to(total, x)
    close(total, before.float() + expected)
    gated = Streamed.of(given, Use.GATED)
    assert gated is not None
    gate, up = (expected / x.float().norm(dim=1, keepdim=True)).chunk(2, dim=1)
    close(gated.gated(x, 0.0, is_silu=True), F.silu(gate) * up)
    close(gated.gated(x, 0.0, is_silu=False), F.gelu(gate, approximate="tanh") * up)


@on_hopper
@pytest.mark.parametrize("rows", [1, 5, 63, 64, 65, 128, 192])
@pytest.mark.parametrize(("inputs", "outputs"), [(5120, 34816), (1024, 6144)])
def test_a_norm_inside(inputs: int, outputs: int, rows: int) -> None:
    """Of rows as different in length as can be, one of which is nothing."""
    weight, given = weights(inputs, outputs, rows)
    streamed = Streamed.of(given, Use.GATED)
    assert streamed is not None
    if inputs == 1024:
        assert not most_rows(given, Use.NORMED)  # too small by itself
        assert streamed.most_rows == 64
    if rows > streamed.most_rows:
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
    gate, up = (x.float() / long @ weight.float().t()).chunk(2, dim=1)
    for is_silu, expected in ((True, F.silu(gate)), (False, F.gelu(gate, approximate="tanh"))):
        got = streamed.gated(x, FLOOR, is_silu)
        assert rows == 1 or not got[rows // 2].any()
        kept = [row for row in range(rows) if rows == 1 or row != rows // 2]
        close(got[kept], (expected * up)[kept])
        assert torch.equal(got, streamed.gated(x, FLOOR, is_silu))
    if rows > 1:
        x[0] = float("nan")
        hurt = streamed.gated(x, FLOOR, False)
        assert hurt[0].isnan().all()
        assert torch.equal(hurt[1:], got[1:])


@on_hopper
def test_rows_do_not_see_each_other() -> None:
    streamed = Streamed.of(weights(5120, 5120, 1)[1], Use.ADDED)
    assert streamed is not None
    x = torch.randn(70, 5120, device="cuda").bfloat16()
    apart = streamed.plain(x)
    x[3] = float("nan")
    got = streamed.plain(x)
    assert got[3].isnan().all()
    others = [row for row in range(70) if row != 3]
    assert torch.equal(got[others], apart[others])


@on_hopper
def test_a_chain_of_them_in_a_graph() -> None:
    """Each may start before the one in front has ended, and must not read its rows before."""
    linears = [weights(5120, 5120, seed) for seed in range(4)]
    kernels = [Streamed.of(given, Use.ADDED) for _, given in linears]
    x = torch.randn(64, 5120, device="cuda").bfloat16()

    def chain(start: Tensor) -> Tensor:
        for kernel in kernels:
            assert kernel is not None
            start = kernel.plain(start)
        return start

    chain(x)
    with recording(GraphMemory()) as graph:
        found = chain(x)
    for seed in range(3):
        x.copy_(torch.randn(64, 5120, generator=torch.Generator().manual_seed(seed)))
        graph.replay()
        expected = x
        for weight, _ in linears:
            expected = expected @ weight.t()
        assert (found.float() - expected.float()).norm() / expected.float().norm() < 1e-2


def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What becomes of linears that are streamed from now on."""
    ran: list[str] = []
    kept = Streamed._run

    def run(self: Streamed, outcome: Any, *given: Any) -> None:
        ran.append(outcome)
        kept(self, outcome, *given)

    monkeypatch.setattr(Streamed, "_run", run)
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
        monkeypatch.setattr(f"paceline.runner.cuda.gemm.streamed_gemm.{least}", 1 << 60)
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
    monkeypatch.setattr("paceline.runner.cuda.gemm.streamed_gemm.GATED_BYTES", 1 << 60)
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
    def bf16(*shape: int) -> Tensor:
        return torch.randn(*shape, device="cuda").bfloat16()

    small, exact = weights_of(bf16(1024, 1024)), weights_of(bf16(5120, 5120).float())
    biased = weights_of(bf16(5120, 5120), torch.ones(5120, device="cuda"))
    assert not any(Streamed.of(one, Use.ADDED) for one in (small, exact, biased))
