"""Kernels of Triton on the CPU, in its interpreter: what they compute, not how fast, nor in which
order. It must be told before it is imported, so these tests have a run of their own:

    TRITON_INTERPRET=1 pytest tests/interpreted
"""

import os
from typing import Any

import pytest

if os.environ.get("TRITON_INTERPRET") != "1":
    collect_ignore_glob = ["test_*.py"]
else:
    from triton.language.extra import cuda
    from triton.runtime import interpreter

    def at_once() -> None:
        """Programs run one after the other: nobody has to wait for another kernel."""

    def with_numbers(tensor: Any, scope: Any) -> None:
        """A range of a kernel has ends that numpy, from 2.4 on, does not take for numbers."""
        patch(tensor, scope)
        tensor.__index__ = lambda self: int(self.handle.data.item())

    cuda.gdc_wait = cuda.gdc_launch_dependents = at_once
    patch, interpreter._patch_lang_tensor = interpreter._patch_lang_tensor, with_numbers


@pytest.fixture(autouse=True)
def small_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that few programs fill, because they take their time."""
    monkeypatch.setattr("paceline.runner.attention.triton.BUSY", 16)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Numpy warns of infinities that kernels deal with themselves."""
    for item in items:
        item.add_marker(pytest.mark.filterwarnings("ignore::RuntimeWarning"))
