"""Other weights in place: a model computes what one that was loaded with them does."""

import gc
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from paceline.core.errors import ConfigError, WeightsLost
from paceline.runner.cuda.model import CUDA, CudaModel
from paceline.runner.layers.packed_cache import CacheLimits, PackedCache
from paceline.runner.layers.torch_features import TORCH
from paceline.runner.models.architecture import DecoderSpec
from paceline.runner.models.model import Model
from paceline.runner.weights import renewal
from paceline.runner.weights.dummy import Dummy
from paceline.runner.weights.renewal import renew
from paceline.runner.weights.safetensors import SafetensorsFolder
from tests.conformance.architectures import Case, distinct, few_cases
from tests.runner.sequences import OnCPU, logits_of
from tests.runner.weights.quantized_checkpoints import KINDS, write_both

TOKENS = [5, 9, 2, 7, 1, 1, 3, 60, 50, 51, 52]
CASES = [one for one in few_cases() if one.variant == "plain"]
# Numbers of these are kept as constants of kernels.
CONSTANTS = {"apertus": "alpha", "gemma4": "scale"}


def content(tensor: Tensor) -> bytes:
    return tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()


def tensors_within(model: Any) -> Counter[tuple[Any, ...]]:
    """The content of every tensor that Python finds in an object."""
    return Counter((tuple(one.shape), one.dtype, content(one)) for one in found_in(model))


def found_in(model: Any) -> Iterator[Tensor]:
    """Every tensor that Python finds in an object, whatever holds it."""
    seen: set[int] = set()
    open_objects = [model]
    while open_objects:
        one = open_objects.pop()
        if id(one) in seen or isinstance(one, ModuleType | type | DecoderSpec):
            continue
        seen.add(id(one))
        if isinstance(one, Tensor):
            yield one
        elif isinstance(one, FunctionType):
            open_objects += [cell.cell_contents for cell in one.__closure__ or ()]
        else:
            open_objects += gc.get_referents(one)


@torch.inference_mode()
def lose_weights(model: CudaModel) -> None:
    """Overwrite all that a GPU drops when a model sleeps at level 2."""
    kept = {one.data_ptr() for one in renewal.lasting_tensors(model)}
    for one in found_in(model):
        if one.data_ptr() not in kept:
            one.zero_()


def logits(model: Model) -> Tensor:
    return logits_of(OnCPU(model, "paged"), TOKENS)


def is_refused(case: Case, model: Any, source: Dummy) -> bool:
    """Some architectures have learned numbers that are no tensors here: they are refused, and
    nothing changes."""
    if not any(case.architecture.startswith(name) for name in CONSTANTS):
        return False
    before = tensors_within(model)
    with pytest.raises(ConfigError, match="cannot take the place of those in use"):
        renew(model, source, has_room=False)
    assert tensors_within(model) == before
    return True


@pytest.mark.parametrize("case", distinct(CASES, TORCH), ids=str)
def test_a_model_with_other_weights_computes_what_a_new_one_does(case: Case) -> None:
    config = case.config()
    first, second = Dummy(config, seed=3), Dummy(config, seed=4)
    model, fresh = Model.load(first), Model.load(second)
    if is_refused(case, model, second):
        return
    renew(model, second, has_room=case.architecture < "h")
    torch.testing.assert_close(logits(model), logits(fresh), rtol=0, atol=0)
    renew(model, first, has_room=True)
    torch.testing.assert_close(logits(model), logits(Model.load(first)), rtol=0, atol=0)


@pytest.mark.parametrize("case", distinct(CASES, CUDA), ids=str)
def test_every_tensor_of_a_model_of_kernels_is_replaced(case: Case) -> None:
    config = case.config()
    first, second = Dummy(config, seed=3), Dummy(config, seed=4)
    model, fresh = (CudaModel.load(one, 64, torch.float32, "cpu") for one in (first, second))
    places = {one.data_ptr() for one in renewal.weights_of(model)}
    if is_refused(case, model, second):
        return
    assert tensors_within(model) != tensors_within(fresh)
    renew(model, second, has_room=False)
    assert tensors_within(model) == tensors_within(fresh)
    lose_weights(model)
    assert tensors_within(model) != tensors_within(fresh)
    renew(model, second, has_room=True)
    assert tensors_within(model) == tensors_within(fresh)
    assert {one.data_ptr() for one in renewal.weights_of(model)} == places


def quantized(kind: str, folder: Path) -> list[SafetensorsFolder]:
    """Two checkpoints of a format."""
    found: list[SafetensorsFolder] = []
    for seed in range(2):
        (folder / str(seed)).mkdir()
        written, _ = write_both(KINDS[kind], folder / str(seed), seed=seed)
        found.append(SafetensorsFolder(written))
    return found


KEPT = ["fp8 by blocks", "gptq with act order", "compressed int4 with zeros", "nvfp4"]


@pytest.mark.parametrize("kind", KEPT)
def test_weights_that_stay_quantized_are_replaced(kind: str, tmp_path: Path) -> None:
    first, second = quantized(kind, tmp_path)
    for load in (
        lambda one: Model.load(one, weights="int8"),
        lambda one: CudaModel.load(one, 64, torch.bfloat16, "cpu"),
    ):
        model, fresh = load(first), load(second)
        renew(model, second, has_room=False)
        ours, due = ([*renewal.weights_of(one)] for one in (model, fresh))
        assert len(ours) == len(due) > 10
        for found, wanted in zip(ours, due, strict=True):
            assert content(found) == content(wanted)


def test_packed_weights_of_a_cache_are_replaced_and_its_file_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    first, second = (one.files[0].parent for one in quantized("gptq", tmp_path))
    limits = CacheLimits(least_bytes=0)
    due = logits(Model.load(SafetensorsFolder(first), weights="int8"))
    other = logits(Model.load(SafetensorsFolder(second), weights="int8"))
    for _ in range(3):  # those after the first one map the file that it wrote
        source = SafetensorsFolder(first)  # weights in use may be pages of its files
        model = Model.load(source, weights="int8", packed=PackedCache(source.files, limits))
        torch.testing.assert_close(logits(model), due, rtol=0, atol=0)
        renew(model, SafetensorsFolder(second), has_room=True)
        torch.testing.assert_close(logits(model), other, rtol=0, atol=0)


@pytest.mark.parametrize("has_room", [True, False])
def test_a_failure_in_between(has_room: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the first tensor is replaced, nothing is lost."""
    config = Case("llama").config()
    model, source = Model.load(Dummy(config, seed=3)), Dummy(config, seed=4)
    before, read, reads, last = logits(model), source.read, 0, 3

    def failing(name: str) -> Tensor:
        nonlocal reads
        reads += 1
        if reads == last:
            raise OSError("the disk is gone")
        return read(name)

    monkeypatch.setattr(source, "read", failing)
    with pytest.raises(OSError, match="gone"):
        renew(model, source, has_room)
    torch.testing.assert_close(logits(model), before, rtol=0, atol=0)
    if not has_room:
        reads, last = 0, len(source.shapes) + 5
        with pytest.raises(WeightsLost, match="replaced in part: the disk is gone"):
            renew(model, source, has_room)
