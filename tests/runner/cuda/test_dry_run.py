"""Dry runs compile what would be launched, for an H200, without a GPU."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton.compiler import CompiledKernel
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from paceline.runner.cuda.kernels.dry_run import dry_run, present
from paceline.runner.cuda.kernels.nvrtc import Kernel, expect
from paceline.runner.cuda.model import various
from paceline.runner.models.describe import config_in, describe
from tests.runner.cuda.conftest import TARGET


@triton.jit
def _double(x, out, size, LINES: tl.constexpr):
    at = tl.arange(0, LINES)
    tl.store(out + at, tl.load(x + at, mask=at < size) * 2, mask=at < size)


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of kernels that were loaded, on a GPU that is not there."""
    found: list[str] = []
    stand_in: Any = SimpleNamespace(
        get_current_device=lambda: 0,
        get_current_stream=lambda device: 0,
        get_current_target=lambda: TARGET,
    )
    monkeypatch.setattr(CompiledKernel, "_init_handles", lambda one: found.append(one.name))
    monkeypatch.setattr(driver, "_active", stand_in)
    return found


def test_kernels_are_compiled_once_and_not_launched(launched: list[str]) -> None:
    run, x = JITFunction.run, torch.ones(64)
    with dry_run():
        for lines in (16, 32, 32):
            out = torch.empty_like(x)
            _double[(1,)](x, out, 64, LINES=lines)
            assert not out.any(), "what a kernel would fill is zero"
        _double[(1,)](x, x.new_empty(64), 64, LINES=16)
        assert present() is not None
    assert launched == ["_double", "_double"]
    assert len(_double.device_caches[0][0]) == 2
    assert JITFunction.run is run
    assert present() is None


def test_kernels_in_cuda_are_loaded_once_and_not_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[Any] = []

    def load(kernel: Kernel) -> None:
        loaded.append(kernel)

    monkeypatch.setattr(Kernel, "load", load)
    kernel = Kernel("source", "name", 32, 0)
    with dry_run():
        for _ in range(3):
            kernel.launch(1, ())
        others = [Kernel("other source", "name", 32, 0) for _ in range(2)]
        expect([kernel, *others])
    assert sorted(map(id, loaded)) == sorted(map(id, (kernel, *others)))
    expect([Kernel("source of no dry run", "name", 32, 0)])
    assert len(loaded) == 3


def test_an_error_of_the_work_leaves_the_dry_run(launched: list[str]) -> None:
    with pytest.raises(ValueError, match="wrong"), dry_run():
        raise ValueError("wrong")
    with dry_run():
        assert present() is not None
    assert present() is None


@pytest.mark.parametrize(
    ("shape", "due"), [("qwen3-14b", [0, 1, 39]), ("gpt-oss-20b", [0, 1, 2, 3, 23])]
)
def test_few_layers_stand_for_all(shape: str, due: list[int]) -> None:
    layers = describe(config_in(shape)).layers
    assert various(layers, [{}] * len(layers)) == due
    last = {"output": "another kernel"}
    assert various(layers[:8], [*[{}] * 6, last, last])[-2:] == [6, 7]
