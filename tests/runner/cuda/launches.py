"""Records which variants of Triton kernels a runner launches, without a GPU and without running
them.

Triton compiles a kernel for each combination of constants, types, and properties of its arguments:
a number that is 1 or a multiple of 16, a pointer to a multiple of 16 bytes. It finds them on the
host, so they can be recorded on a CPU.
"""

from typing import Any

import pytest
import torch
from triton.backends.compiler import GPUTarget
from triton.compiler import make_backend
from triton.runtime.jit import JITFunction, create_function_from_signature

from paceline.runner.cuda.kernels.drafts import _accept
from paceline.runner.cuda.kernels.dry_run import DryRun
from tests.interpreted.host_device import use_host

Variant = tuple[str, tuple[str, ...]]  # the name of a kernel, and how each argument is special


class Launches:
    """The variants that were launched since it was made."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.seen: set[Variant] = set()
        self._backend = make_backend(GPUTarget("cuda", 90, 32))
        self._binders: dict[Any, Any] = {}
        use_host(patch)
        unpinned = torch.empty
        # Kernels do not run here, so what they would write is zero.
        patch.setattr(torch, "empty", lambda *size, **how: unpinned(*size, **how).zero_())
        patch.setattr(torch, "empty_like", torch.zeros_like)

        def record(kernel: Any, *given: Any, **how: Any) -> None:
            self._record(kernel, *given, **how)

        def met(_: DryRun, run: Any, kernel: Any, *given: Any, **how: Any) -> None:
            run(kernel, *given, grid=None, warmup=True, **how)

        patch.setattr(JITFunction, "run", record)
        patch.setattr(DryRun, "meet", met)

    def _record(self, kernel: Any, *given: Any, grid: Any, warmup: bool, **how: Any) -> None:
        if kernel not in self._binders:
            signature = kernel.signature, kernel.params, self._backend
            self._binders[kernel] = create_function_from_signature(*signature)
        bound, special, options = self._binders[kernel](*given, **how)
        named = [f"{name}: {kind}" for name, kind in zip(bound, special, strict=True)]
        named += [f"{name}: {value}" for name, value in options.items()]
        self.seen.add((kernel.fn.__name__, tuple(named)))
        if kernel.fn is _accept.fn:
            bound["ids"][:, 1:] = -1  # no draft was right
            bound["position"][bound["slot"].long()] = bound["known"]
