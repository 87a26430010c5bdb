"""Kernels of Triton on the CPU, in its interpreter: what they compute, not how fast, nor in which
order. It must be told before it is imported, so these tests have a run of their own:

    TRITON_INTERPRET=1 pytest tests/interpreted
"""

import os
from dataclasses import replace
from functools import cache
from math import prod
from typing import Any

import numpy as np
import pytest
import torch

if os.environ.get("TRITON_INTERPRET") != "1":
    collect_ignore_glob = ["test_*.py"]
else:
    from triton import language as tl
    from triton._utils import validate_block_shape
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

    @cache
    def block_shape(sizes: tuple[int, ...]) -> tuple[Any, int]:
        """A shape as types have it, and its number of elements."""
        return tl.core.tuple(sizes), validate_block_shape(sizes)

    @cache
    def tensor_shape(sizes: tuple[int, ...]) -> tuple[Any, Any]:
        """A shape as tensors have it, and its number of elements."""
        return tl.core.tuple([tl.constexpr(size) for size in sizes]), tl.constexpr(prod(sizes))

    def init_type(self: Any, element_ty: Any, shape: Any) -> None:
        """Each operation makes types and tensors; Triton would check and wrap their shapes anew."""
        sizes = tuple(tl.core._unwrap_if_constexpr(size) for size in shape)
        assert sizes
        self.element_ty = element_ty
        self.shape, self.numel = block_shape(sizes)

    def init_tensor(self: Any, handle: Any, type: Any) -> None:
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.shape, self.numel = tensor_shape(tuple(type.shape) if type.is_block() else ())

    tl.block_type.__init__, tl.tensor.__init__ = init_type, init_tensor
    tl.block_type.name = property(lambda self: f"<{self.shape}, {self.element_ty}>")
    # Tensors are far too small here for indices that overflow; to look takes a third of the time.
    builder = interpreter.interpreter_builder
    builder.options = replace(builder.options, sanitize_overflow=False)
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
    monkeypatch.setattr("paceline.runner.attention.triton.AT_ONCE", 8)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Numpy warns of infinities that kernels deal with themselves."""
    for item in items:
        item.add_marker(pytest.mark.filterwarnings("ignore::RuntimeWarning"))
