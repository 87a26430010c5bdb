"""Compiles Triton kernels for an H200 instead of launching them, without a GPU."""

from typing import Any

import pytest
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile, make_backend
from triton.runtime.jit import JITFunction, create_function_from_signature

TARGET = GPUTarget("cuda", 90, 32)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The kernels that were launched since, by name."""
    backend, found = make_backend(TARGET), dict[str, Any]()

    def run(kernel: Any, *given: Any, grid: Any, warmup: bool, **how: Any) -> None:
        binder = create_function_from_signature(kernel.signature, kernel.params, backend)
        packed = kernel._pack_args(backend, how, *binder(*given, **how))
        source, options = ASTSource(kernel, *packed[1:]), packed[0].__dict__
        found[kernel.fn.__name__] = compile(source, target=TARGET, options=options)

    monkeypatch.setattr(JITFunction, "run", run)
    return found
