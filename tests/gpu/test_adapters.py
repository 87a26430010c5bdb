"""Adapters on a GPU: tokens are those of merged weights, however requests are scheduled."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from paceline import Request, Scheduler
from paceline.core.constraint import Constraint
from paceline.core.sampling import Sampling
from paceline.runner.adapters.weights import PartWeights
from paceline.runner.cuda.adapters import AdapterSizes, CudaAdaptedLinear
from paceline.runner.cuda.drafting.draft_model import CudaDraftModel
from paceline.runner.cuda.kernels.adapters import AdapterLayout, add_adapted, gate_adapted
from paceline.runner.cuda.kernels.layers import DeferredNorm
from paceline.runner.cuda.linears import CudaLinear
from paceline.runner.cuda.model import CudaModel
from paceline.runner.layers.linear import LinearParts
from paceline.runner.models.model import Model
from paceline.runner.weights.dummy import Dummy
from paceline.runner.weights.matrix import Matrix, PlainMatrix
from paceline.runner.weights.quantized_matrix import rows_of_fp8, rows_of_int8
from tests.gpu.coded_linears import MATRICES
from tests.gpu.runners import gpu_runner
from tests.gpu.support import ON_GPU
from tests.property.grammars import END, constrained_requests
from tests.runner.adapters.support import Merged, write_adapter
from tests.runner.driving import SETTINGS, TIGHT, drive, requests
from tests.runner.support import tiny
from tests.runner.test_runner import runner_for

pytestmark = ON_GPU

Quantized = Callable[[Tensor], Matrix]
LAYOUTS = [
    AdapterLayout(96, (0, 40, 72), capacity=2, rank=16),
    AdapterLayout(50, (0,), capacity=9, rank=16),  # two chunks of columns
    AdapterLayout(64, (0, 32), capacity=2, rank=144),  # an adapter in several chunks
]
OF_REQUEST = ("x", "", "x", "y", "z")
QWEN: dict[str, Any] = {"architectures": ["Qwen3ForCausalLM"], "num_hidden_layers": 3}
DRAFTS = {"num_speculative_tokens": 3, "speculation": "fixed"}
WAYS: dict[str, dict[str, Any]] = {
    "one by one": {},
    "ahead": {"depth": 3},
    "in small pieces": {"max_num_batched_tokens": 8, "depth": 2},
    "one adapter at a time": {"max_loras": 1, "depth": 2},
    "recomputed": {**TIGHT, "depth": 2},
    "swapped": {**TIGHT, "preemption_mode": "swap", "swap_space": 32, "depth": 2},
    "drafted": {**DRAFTS, "depth": 2},
}


def expected_sum(found: Tensor, b: Tensor, index: Tensor, layout: AdapterLayout) -> Tensor:
    """Row by row, what `add_adapted` gives."""
    due, rank = found[:, : layout.outputs].clone(), layout.rank
    ends = (*layout.starts[1:], layout.outputs)
    for row, own in enumerate(index.tolist()):
        for part, (start, end) in enumerate(zip(layout.starts, ends, strict=True)):
            first = layout.outputs + part * layout.part_columns + own * rank
            if own >= 0:
                inner = found[row, first : first + rank]
                due[row, start:end] += inner @ b[own * rank : (own + 1) * rank, start:end]
    return due


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("rows", [5, 300])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_rows_of_any_adapters(layout: AdapterLayout, rows: int, dtype: torch.dtype) -> None:
    index = (torch.arange(rows, dtype=torch.int32) % (layout.capacity + 1) - 1).cuda()
    found = torch.randn(rows, layout.columns).to("cuda", dtype)
    b = torch.randn(layout.part_columns, layout.outputs).to("cuda", dtype)
    total = torch.randn(rows, layout.outputs).to("cuda", dtype)
    due = expected_sum(found.float(), b.float(), index, layout)
    tolerance = 1e-3 if dtype == torch.float32 else 0.15
    got = add_adapted(found, b, index, layout)
    torch.testing.assert_close(got.float(), due, rtol=tolerance, atol=tolerance)
    due = due + total.float()
    halves = torch.stack((found.float() / 4, found.float() * 3 / 4))
    add_adapted(halves, b, index, layout, total)
    torch.testing.assert_close(total.float(), due, rtol=tolerance, atol=tolerance)


def check_gate(layout: AdapterLayout, is_silu: bool, rows: int, device: str) -> None:
    """With `is_silu`, the norm of the inputs is left to the kernel."""
    index = torch.arange(rows, dtype=torch.int32) % (layout.capacity + 1) - 1
    found, stream = torch.randn(rows, layout.columns), torch.randn(rows, 40)
    b = torch.randn(layout.part_columns, layout.outputs) * 0.1
    gate, up = expected_sum(found, b, index, layout).chunk(2, dim=1)
    late = DeferredNorm(stream.to(device), 0.1 if is_silu else 0.0, 40 if is_silu else 0)
    if is_silu:
        length = (stream.square().sum(1, keepdim=True) + 0.1**2).sqrt()
        due = F.silu(gate / length) * up / length
    else:
        due = F.gelu(gate, approximate="tanh") * up
    given = (one.to(device) for one in (found, b, index))
    got = gate_adapted(*given, layout, is_silu, late)
    torch.testing.assert_close(got.cpu(), due, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("layout", LAYOUTS[1:], ids=str)
@pytest.mark.parametrize("is_silu", [True, False])
@pytest.mark.parametrize("rows", [5, 300])
def test_a_gate_of_rows_of_any_adapters(layout: AdapterLayout, is_silu: bool, rows: int) -> None:
    check_gate(layout, is_silu, rows, "cuda")


def check_product(
    rows: int,
    inputs: int,
    dtype: torch.dtype,
    device: str,
    form: Quantized = PlainMatrix,
    most: float = 0.06,
) -> None:
    """A linear and two adapters, of which one has no weights for some outputs."""
    layout = AdapterLayout(64, (0, 32), capacity=2, rank=16)
    matrix = form(torch.randn(64, inputs, device=device).mul_(inputs**-0.5).to(dtype))
    bias = None if form is PlainMatrix else torch.randn(64, device=device)
    model = CudaLinear(LinearParts("linear", lambda: matrix, bias, None, dtype))
    linear, weight = CudaAdaptedLinear(model, layout), matrix.dense()
    assert torch.allclose(model.weights.matrix.dense(), weight, atol=1e-3)
    index = (torch.arange(rows, dtype=torch.int32, device=device) % 3) - 1
    x = torch.randn(rows, inputs, device=device).to(dtype)
    due = x.float() @ weight.t()
    due = due if bias is None else due + bias.to(dtype).float()
    total = torch.ones(rows, 64, device=device, dtype=dtype)
    for at, firsts in enumerate(((0, 32), (32,))):
        parts: list[PartWeights] = []
        for first in firsts:
            a = torch.randn(inputs, 3).mul_(inputs**-0.5).to(dtype)
            b = torch.randn(3, 32).to(dtype)
            parts.append(PartWeights(first, first + 32, a, b))
            more = (x.float() @ a.float().to(device)) @ b.float().to(device)
            due[:, first : first + 32] += torch.where((index == at)[:, None], more, 0.0)
        linear.put(at, (PartWeights(0, 32, a * 9, b),))  # which is replaced
        linear.put(at, tuple(parts))
    how = {"rtol": most, "atol": most}
    torch.testing.assert_close(linear(x, index).float(), due, **how)
    linear.add_to(total, x, index)
    torch.testing.assert_close(total.float(), due + 1.0, **how)


@pytest.mark.parametrize("rows", [1, 64, 128, 300])
@pytest.mark.parametrize("inputs", [96, 512, 3072])
def test_a_product_with_room_for_adapters(rows: int, inputs: int) -> None:
    check_product(rows, inputs, torch.bfloat16, "cuda")


@pytest.mark.parametrize("name", ["fp8", "int8", "Q4_K", "nvfp4"])
@pytest.mark.parametrize("rows", [1, 64, 300])
def test_a_quantized_linear_with_room_for_adapters(name: str, rows: int) -> None:
    """Of fp8, inputs are quantized too."""
    forms = {**MATRICES, "fp8": rows_of_fp8, "int8": rows_of_int8}
    most = 0.25 if name == "fp8" else 0.06

    def form(weight: Tensor) -> Matrix:
        return forms[name](weight.float())

    check_product(rows, 512, torch.bfloat16, "cuda", form, most)


# -- under the scheduler -----------------------------------------------------


class AdaptedOnGPU:
    """Three adapters of a model, and the tokens of the models that they are merged into."""

    def __init__(self, folder: Path, **shape: Any) -> None:
        self.base = Dummy(tiny(**{**QWEN, **shape}), seed=3)
        self.folders: dict[str, Path] = {}
        self._merged = {"": Model.load(self.base)}
        for seed, name in enumerate("xyz"):
            own = write_adapter(folder / name, self.base.config, seed, r=2 + 2 * seed)
            self.folders[name], self._merged[name] = own, Model.load(Merged(self.base, own))

    def expected(self, asked: list[Request], **settings: Any) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, model in self._merged.items():
            scheduler = Scheduler.create(**{**SETTINGS, **settings})
            own = [replace(one, adapter="") for one in asked if one.adapter == name]
            masks = constrained_requests(model.config.vocab)
            runner = runner_for(model, scheduler, "sdpa", masks)
            found |= drive(scheduler, runner, own, constrained=masks)
        return found

    def runner(self, scheduler: Scheduler, **parts: Any) -> Any:
        room = AdapterSizes(scheduler.config.step.max_loras, 8)
        model = CudaModel.load(self.base, 64, torch.float32, adapters=room)
        found = gpu_runner(model, scheduler, **parts)
        assert found.host_adapters is not None
        for name, folder in self.folders.items():
            found.host_adapters.keep(name, found.host_adapters.read(str(folder)))
        found.warm(drafts=scheduler.config.speculation.num_speculative_tokens > 0)
        return found


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> AdaptedOnGPU:
    return AdaptedOnGPU(tmp_path_factory.mktemp("adapters"))


def asked(**fields: Any) -> list[Request]:
    pairs = zip(requests(**fields), OF_REQUEST, strict=True)
    return [replace(one, adapter=adapter) for one, adapter in pairs]


@pytest.mark.parametrize("way", WAYS)
def test_a_mixed_batch_gives_the_tokens_of_merged_weights(adapted: AdaptedOnGPU, way: str) -> None:
    changes = dict(WAYS[way])
    depth = changes.pop("depth", 1)
    scheduler = Scheduler.create(**{**SETTINGS, "max_loras": 2, **changes})
    assert drive(scheduler, adapted.runner(scheduler), asked(), depth) == adapted.expected(asked())
    if "num_blocks" in changes:
        assert scheduler.stats.preemptions, "the pool was not tight"
    if "num_speculative_tokens" in changes:
        assert scheduler.stats.drafted


def test_norms_of_what_is_added_and_many_rows(tmp_path: Path) -> None:
    gemma = AdaptedOnGPU(tmp_path, architectures=["Gemma3ForCausalLM"])
    many = [replace(one, id=f"{one.id}-{n}") for n in range(4) for one in asked()]
    sizes = {"max_num_seqs": 24, "num_blocks": 200}
    scheduler = Scheduler.create(**{**SETTINGS, **sizes, "max_loras": 3})
    assert drive(scheduler, gemma.runner(scheduler), many, 2) == gemma.expected(many, **sizes)


def test_a_prefix_is_found_by_requests_of_the_same_adapter_alone(adapted: AdaptedOnGPU) -> None:
    first, other, again = (
        Request(id=name, prompt=[7] * 16, max_tokens=4, adapter=adapter)
        for name, adapter in (("a", "x"), ("b", ""), ("c", "x"))
    )
    scheduler = Scheduler.create(**SETTINGS, max_loras=1)
    runner, found = adapted.runner(scheduler), {}
    for request, hits in ((first, 0), (other, 0), (again, 12)):
        before = scheduler.stats.to_dict()["prefix_hits"]
        found |= drive(scheduler, runner, [request], 2)
        assert scheduler.stats.to_dict()["prefix_hits"] - before == hits
    assert found == adapted.expected([first, other, again])


def test_adapters_come_and_go(adapted: AdaptedOnGPU) -> None:
    """Three adapters share a table of two, and one is replaced by another under its name."""
    scheduler = Scheduler.create(**SETTINGS, max_loras=2)
    runner = adapted.runner(scheduler)
    for name in ("x", "z", "y", "x", "z"):
        own = [replace(one, adapter=name) for one in requests()]
        assert drive(scheduler, runner, own, 2) == adapted.expected(own), name
    runner.host_adapters.drop("x")
    runner.host_adapters.keep("new", runner.host_adapters.read(str(adapted.folders["x"])))
    own = [replace(one, adapter="new") for one in requests()]
    due = adapted.expected([replace(one, adapter="x") for one in own])
    assert drive(scheduler, runner, own, 2) == due


def test_adapters_beside_grammars_and_scored_prompts(adapted: AdaptedOnGPU) -> None:
    held = {"constraint": Constraint.regex("[0-4]{4,9}(5|67)*"), "eos_token_ids": (END,)}
    scored = {"sampling": Sampling(temperature=0.0, prompt_logprobs=1)}
    fields = [held, {}, scored, held, scored]
    own = [replace(one, **more) for one, more in zip(asked(), fields, strict=True)]
    masks = constrained_requests(adapted.base.config.vocab)
    scheduler = Scheduler.create(**SETTINGS, max_loras=3)
    runner = adapted.runner(scheduler, masks=masks)
    assert drive(scheduler, runner, own, 2, masks) == adapted.expected(own)


def test_a_draft_model_drafts_for_rows_with_adapters(adapted: AdaptedOnGPU) -> None:
    scheduler = Scheduler.create(**{**SETTINGS, **DRAFTS, "max_loras": 3})
    small = CudaModel.load(adapted.base, 64, torch.float32)
    drafter = CudaDraftModel(scheduler.config.speculation, small, torch.float32)
    runner = adapted.runner(scheduler, drafter=drafter)
    assert drive(scheduler, runner, asked(), 2) == adapted.expected(asked())
    assert 0 < scheduler.stats.accepted < scheduler.stats.drafted
