"""Dry runs: work runs without its kernels, which are compiled and loaded side by side."""

# Triton has no types for what launches its kernels.
# pyright: standard

from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from triton.compiler import make_backend
from triton.runtime import driver
from triton.runtime._async_compile import active_mode
from triton.runtime.cache import triton_key
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction

from paceline.core.system.host import usable_cores

MOST_THREADS = 16
EMPTY = ("empty", "empty_like", "empty_strided")


class DryRun:
    """Compiles and loads each kernel once, on threads."""

    def __init__(self, threads: ThreadPoolExecutor) -> None:
        self._threads = threads
        self._seen: set[Any] = set()
        self._loading: dict[Any, Future[Any]] = {}
        self._finalizers: list[Callable[[], None]] = []
        self._afterwards: dict[Any, Callable[[], None]] = {}

    def load(self, key: Any, work: Callable[[], Any]) -> Future[Any]:
        """Have a kernel loaded, unless one with this key was."""
        if key not in self._loading:
            self._loading[key] = self._threads.submit(work)
        return self._loading[key]

    def submit(
        self, key: str, compiled: Callable[[], Any], finalize: Callable[[Any], None]
    ) -> Future[Any]:
        """Triton calls this to have a kernel compiled, and `finalize` takes it over. Several calls
        with different arguments may need the same kernel."""

        def loaded() -> Any:
            kernel = compiled()
            kernel._init_handles()
            return kernel

        kernel = self.load(key, loaded)
        self._finalizers.append(lambda: finalize(kernel.result()))
        return kernel

    def meet(self, run: Callable[..., Any], kernel: Any, *given: Any, **how: Any) -> None:
        """Have a kernel of Triton compiled and loaded for these arguments. `run` is what launches
        it."""
        active: Any = driver.active
        bind = kernel.device_caches[active.get_current_device()][-1]
        _, specialization, options = bind(*given, **how)
        key = kernel, repr(specialization), repr(options)
        if key not in self._seen:
            self._seen.add(key)
            compiler().result()
            run(kernel, *given, grid=None, warmup=True, **how)

    def afterwards(self, key: Any, work: Callable[[], None]) -> None:
        """Have work done once when kernels are launched again, unless some with this key is."""
        self._afterwards.setdefault(key, work)

    def end(self) -> None:
        """Do what was left for afterwards."""
        for work in self._afterwards.values():
            work()

    def wait(self) -> None:
        """All kernels are loaded afterwards. Raises the error of one that cannot be."""
        for one in self._loading.values():
            one.result()
        for finalize in self._finalizers:
            finalize()


@cache
def compiler() -> Future[str]:
    """Have Triton hash its own files, which names its kernels in the cache. That takes most of a
    second, beside Python: call this early."""

    def hashed() -> str:
        active: Any = driver.active
        return triton_key() + make_backend(active.get_current_target()).hash()

    return ThreadPoolExecutor(1).submit(hashed)


_active: ContextVar[DryRun | None] = ContextVar("dry_run", default=None)


def present() -> DryRun | None:
    """The dry run of this thread; None: kernels are launched."""
    return _active.get()


@contextmanager
def dry_run() -> Generator[None]:
    """Launch no kernel on this thread, and have those that are missing compiled and loaded.

    Work has the same effects otherwise: it allocates memory, and calls libraries.
    """
    device = torch.cuda.current_device() if torch.cuda.is_available() else None
    begin = (lambda: None) if device is None else partial(torch.cuda.set_device, device)
    threads = ThreadPoolExecutor(min(usable_cores(), MOST_THREADS), initializer=begin)
    active: Any = DryRun(threads)
    with threads, filled_with_zeros(), without_launches():
        before, compiling = _active.set(active), active_mode.set(active)
        try:
            yield
            active.wait()
        finally:
            _active.reset(before)
            active_mode.reset(compiling)
    active.end()


@contextmanager
def without_launches() -> Generator[None]:
    """Kernels that are launched in a dry run are met; those of other threads run."""
    jit: Any = JITFunction
    interpreter: Any = InterpretedFunction
    launch, interpret = jit.run, interpreter.run

    def run(kernel: Any, *given: Any, grid: Any, warmup: bool, **how: Any) -> Any:
        if (dry := present()) is None or warmup:
            return launch(kernel, *given, grid=grid, warmup=warmup, **how)
        return dry.meet(launch, kernel, *given, **how)

    def interpreted(kernel: Any, *given: Any, grid: Any, warmup: bool, **how: Any) -> Any:
        return interpret(kernel, *given, grid=grid, warmup=warmup or present() is not None, **how)

    jit.run, interpreter.run = run, interpreted
    try:
        yield
    finally:
        jit.run, interpreter.run = launch, interpret


@contextmanager
def filled_with_zeros() -> Generator[None]:
    """What kernels would write is zero, which is a valid index. Other threads get zeros too."""
    whole: Any = torch
    tensor: Any = Tensor
    before = {name: getattr(whole, name) for name in EMPTY}
    for name, empty in before.items():
        setattr(whole, name, filling(empty))
    tensor.new_empty = filling(tensor.new_empty)
    try:
        yield
    finally:
        del tensor.new_empty  # of its base class
        for name, empty in before.items():
            setattr(whole, name, empty)


def filling(empty: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def filled(*given: Any, **how: Any) -> Tensor:
        return empty(*given, **how).zero_()

    return filled
