"""Kernels of Triton on the CPU, in its interpreter: what they compute, not how fast, nor in which
order. It must be told before it is imported, so these tests have a run of their own:

    TRITON_INTERPRET=1 pytest tests/interpreted
"""

import os
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

if os.environ.get("TRITON_INTERPRET") != "1":
    collect_ignore_glob = ["test_*.py"]
else:
    from triton import language as tl
    from triton.language.extra import cuda
    from triton.runtime import interpreter

    def at_once() -> None:
        """Programs run one after the other: nobody has to wait for another kernel."""

    def with_numbers(tensor: Any, scope: Any) -> None:
        """A range of a kernel has ends that numpy, from 2.4 on, does not take for numbers."""
        patch(tensor, scope)
        tensor.__index__ = lambda self: int(self.handle.data.item())

    patched = {tl}  # by the kernel; what its functions need besides stays patched

    @cache
    def languages_of(function: Any) -> set[Any]:
        seen = function.fn.__globals__.values()
        return {module for module in (tl, tl.core) if any(one is module for one in seen)}

    def call(function: Any, *args: Any, **named: Any) -> Any:
        """A kernel calls a function. Triton would patch the language anew for each call, which
        takes longer than most functions do."""
        if not languages_of(function) <= patched:
            interpreter._patch_lang(function.fn)
            patched.update(languages_of(function))
        return function.rewrite()(*args, **named)

    def numpy_dtype(dtype: Any) -> Any:
        """Triton would make its table of types anew each time."""
        return uint64 if dtype.scalar.is_ptr() else numpy_dtype_of(dtype.scalar)

    def rounded(data: Any, given: Any, wanted: Any, rounding: Any) -> Any:
        """Triton's own function does not round fp8 up to the next power of two."""
        if wanted == tl.float8e4nv:
            return torch.from_numpy(data).to(torch.float8_e4m3fn).view(torch.uint8).numpy()
        return converted(data, given, wanted, rounding)

    uint64, numpy_dtype_of = np.dtype(np.uint64), cache(interpreter._get_np_dtype)
    cuda.gdc_wait = cuda.gdc_launch_dependents = at_once
    patch, interpreter._patch_lang_tensor = interpreter._patch_lang_tensor, with_numbers
    interpreter.InterpretedFunction.__call__ = call
    interpreter._get_np_dtype = numpy_dtype
    converted, interpreter._convert_float = interpreter._convert_float, rounded


@pytest.fixture(autouse=True)
def small_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that few programs fill, because they take their time."""
    monkeypatch.setattr("paceline.runner.attention.triton.BUSY", 16)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Numpy warns of infinities that kernels deal with themselves."""
    for item in items:
        item.add_marker(pytest.mark.filterwarnings("ignore::RuntimeWarning"))
