"""Adapters on a GPU: the kernel by itself, and the runner under the scheduler."""

from pathlib import Path
from typing import Any

import pytest
import torch

from paceline import Request, Scheduler
from paceline.core.sampling import Sampling
from paceline.runner.adapters.host import HostAdapters, ResidentAdapters
from paceline.runner.adapters.weights import PartWeights
from paceline.runner.attention_backend import load
from paceline.runner.batch import Batch
from paceline.runner.cuda.adapters import AdapterSizes, CudaAdaptedLinear
from paceline.runner.cuda.gemm.linear_kernel import Use
from paceline.runner.cuda.kernels import adapters as kernels
from paceline.runner.cuda.kernels.adapters import AdapterLayout, add_adapted
from paceline.runner.cuda.kernels.layers import normalized
from paceline.runner.cuda.linears import INVARIANT, CudaLinear
from paceline.runner.cuda.model import CudaModel
from paceline.runner.cuda.runner import CudaRunner, RunnerSizes
from paceline.runner.kv_store import KVStore
from paceline.runner.layers.linear import LinearParts
from paceline.runner.models.model import Model
from paceline.runner.proposers.ngram import Ngram
from paceline.runner.runner import TorchRunner
from paceline.runner.weights.dummy import Dummy
from paceline.runner.weights.matrix import Matrix, PlainMatrix
from tests.gpu.coded_linears import MATRICES
from tests.gpu.cuda_backend import SMALL
from tests.gpu.test_adapters import LAYOUTS, check_gate, check_product, expected_sum
from tests.interpreted.host_device import large_programs, use_host
from tests.runner.adapters.support import write_adapter
from tests.runner.driving import SETTINGS, drive
from tests.runner.support import tiny

STEPS: dict[str, Any] = {"max_num_seqs": 4, "max_num_batched_tokens": 8, "max_loras": 2}
DRAFTS = {"num_speculative_tokens": 1, "speculation": "fixed"}


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("is_summed", [False, True])
def test_rows_of_any_adapters(
    layout: AdapterLayout, is_summed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of several tiles of rows, the last has no adapter at all. A sum may come in parts."""
    monkeypatch.setattr(kernels, "LINES", 32)
    index = torch.tensor([*range(-1, layout.capacity), *[-1] * 17], dtype=torch.int32)
    parts = torch.randn(3, len(index), layout.columns)
    found = parts.sum(0)
    b = torch.randn(layout.part_columns, layout.outputs)
    total = torch.randn(len(index), layout.outputs) if is_summed else None
    due = expected_sum(found, b, index, layout)
    due = due if total is None else due + total
    got = add_adapted(parts if is_summed else found, b, index, layout, total)
    assert (got is total) == is_summed
    torch.testing.assert_close(got, due, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("layout", "is_silu"), [(LAYOUTS[1], False), (LAYOUTS[2], True)])
def test_a_gate_of_rows_of_any_adapters(layout: AdapterLayout, is_silu: bool) -> None:
    check_gate(layout, is_silu, rows=20, device="cpu")


def test_a_product_with_room_for_adapters() -> None:
    """Of many inputs, so that programs share them."""
    check_product(rows=5, inputs=512, dtype=torch.float16, device="cpu")


def test_a_quantized_linear_with_room_for_adapters() -> None:
    check_product(rows=5, inputs=256, dtype=torch.float16, device="cpu", form=quantized)


def quantized(weight: torch.Tensor) -> Matrix:
    return MATRICES["Q8_0"](weight.float())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_rows_without_an_adapter_have_the_bits_of_steps_without_adapters(
    dtype: torch.dtype,
) -> None:
    """In a batch-invariant model, whichever way the linear is used."""
    layout = AdapterLayout(64, (0, 32), capacity=2, rank=16, has_one_tile=True)
    weight = PlainMatrix(torch.randn(64, 72).to(dtype))
    linear = CudaLinear(LinearParts("linear", lambda: weight, None, None, dtype), INVARIANT)
    adapted, index = CudaAdaptedLinear(linear, layout), torch.tensor([-1, 0, -1, 1])
    adapted.put(0, (PartWeights(0, 64, torch.randn(72, 16), torch.randn(16, 64)),))
    hidden, total = torch.randn(4, 72).to(dtype), torch.randn(4, 64).to(dtype)
    plain, late = linear.choice(Use.NORMED).of(4).normed(hidden, 0.1)
    gate = linear.choice(Use.GATED).of(4).gated(hidden, 0.1, True)
    x = hidden if late.width else normalized(hidden, 0.1)
    due, got = total.clone(), total.clone()
    linear.add_to(due, x)
    adapted.add_to(got, x, index)
    pairs = [
        (due, got),
        (plain, adapted(x, index)),
        (gate, adapted.gated(x, index, True, late)),
    ]
    for one, other in pairs:
        same = (one == other).all(1).tolist()
        assert same == [True, False, True, True]  # the last one has no weights


# -- under the scheduler -----------------------------------------------------


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One adapts all modules, the other only some, with another rank."""
    folder, config = tmp_path_factory.mktemp("adapters"), source().config
    some = {"r": 3, "target_modules": ["v_proj", "up_proj", "o_proj"]}
    return {
        "x": write_adapter(folder / "x", config, 1),
        "y": write_adapter(folder / "y", config, 2, **some),
    }


def source() -> Dummy:
    return Dummy(tiny(architectures=["Qwen3ForCausalLM"], **SMALL), seed=3)


def keep(host: HostAdapters | None, folders: dict[str, Path]) -> None:
    assert host is not None
    for name, folder in folders.items():
        host.keep(name, host.read(str(folder)))


def on_cpu(asked: list[Request], folders: dict[str, Path]) -> dict[str, Any]:
    scheduler, model = Scheduler.create(**{**SETTINGS, **STEPS}), Model.load(source())
    kv = KVStore(model.config, SETTINGS["num_blocks"], SETTINGS["block_size"])
    runner = TorchRunner(model, kv, load("sdpa"), Ngram(scheduler.config.speculation), 4, 64)
    host = HostAdapters(model.targets, 8)
    runner.use_adapters(ResidentAdapters(host, model.adapters, 2, 4))
    keep(runner.host_adapters, folders)
    return drive(scheduler, runner, asked)


def interpreted(
    asked: list[Request], folders: dict[str, Path], patch: pytest.MonkeyPatch
) -> dict[str, Any]:
    use_host(patch)
    large_programs(patch)
    patch.setattr("paceline.runner.attention.triton.BUSY", 8)
    scheduler = Scheduler.create(**{**SETTINGS, **STEPS, **DRAFTS})
    room = AdapterSizes(2, 8)
    model = CudaModel.load(source(), 64, torch.float32, device="cpu", adapters=room)
    kv = KVStore(model.config, SETTINGS["num_blocks"] + 1, SETTINGS["block_size"])
    proposer, sizes = Ngram(scheduler.config.speculation), RunnerSizes(4, 64, 8)
    runner = CudaRunner(model, kv, load("triton"), proposer, sizes)
    assert runner.capabilities.adapters
    keep(runner.host_adapters, folders)
    return drive(scheduler, runner, asked, depth=2)


def request(name: str, adapter: str, prompt: list[int], outputs: int, **how: Any) -> Request:
    return Request(name, prompt, outputs, adapter=adapter, ignore_eos=True, **how)


def test_tokens_are_those_of_the_cpu(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts, decodes and drafts of an adapter and of the model beside it, and a prompt of
    another adapter that is scored, which no graph computes."""
    scored = Sampling(temperature=0.0, prompt_logprobs=0)
    asked = [
        request("a", "x", [4, 4, 8], 3),
        request("b", "", [4, 4, 8], 3),
        request("c", "y", [5, 6], 1, sampling=scored),
    ]
    due, kinds = on_cpu(asked, folders), set[tuple[str, bool]]()
    forward = CudaModel.forward

    def noted(model: CudaModel, batch: Batch, *given: Any) -> torch.Tensor:
        kinds.add((type(given[2]).__name__, batch.adapters is not None))
        return forward(model, batch, *given)

    monkeypatch.setattr(CudaModel, "forward", noted)
    assert interpreted(asked, folders, monkeypatch) == due
    assert due["a"] != due["b"]
    assert kinds == {
        ("FusedDecodeAttention", True),
        ("MixedAttention", True),
        ("TiledAttention", True),
    }
