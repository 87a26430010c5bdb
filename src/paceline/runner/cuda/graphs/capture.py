"""CUDA graphs of some work in several sizes, each captured before its first use."""

import gc
from collections.abc import Callable, Generator, Hashable, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from paceline.core.system.start import START
from paceline.runner.cuda.kernels.dry_run import dry_run, present

Work = Callable[[Any], None]
Capture = Callable[[], None]  # compiles and captures the work of one size


class GraphMemory:
    """Memory and stream of all graphs of a runner. A graph may overwrite results of others."""

    def __init__(self) -> None:
        self.pool: Any = torch.cuda.graph_pool_handle()
        self.stream = torch.cuda.Stream()


@contextmanager
def recording(memory: GraphMemory) -> Generator[torch.cuda.CUDAGraph]:
    """Kernels launched inside become a graph and do not run."""
    graph, collects = torch.cuda.CUDAGraph(), gc.isenabled()
    torch.cuda.synchronize()
    gc.disable()  # a graph that is destroyed meanwhile would break the capture
    try:
        with torch.cuda.stream(memory.stream):
            graph.capture_begin(pool=memory.pool, capture_error_mode="thread_local")
            try:
                yield graph
            finally:
                graph.capture_end()
    finally:
        if collects:
            gc.enable()
    torch.cuda.synchronize()


class CapturedGraphs:
    """A graph for each size of some work. The work writes its results to memory of its own."""

    def __init__(self, work: Work, memory: GraphMemory | None) -> None:
        """Without memory for graphs, the work is launched kernel by kernel."""
        self._work, self._memory = work, memory
        self._ready: dict[Hashable, Capture] = {}
        self._rehearsed: set[Hashable] = set()

    def __contains__(self, size: Hashable) -> bool:
        return size in self._ready

    def lacks(self, size: Hashable) -> bool:
        """Whether a replay of this size would capture it first."""
        return self._memory is not None and size not in self._ready

    def replay(self, size: Hashable) -> None:
        """Run the work of this size."""
        if self._memory is None:
            self._work(size)
            return
        self.prepare(size)
        if present() is None:
            self._ready[size]()

    def prepare(self, size: Hashable) -> None:
        """Run the work of this size once and capture it, unless that was done before. A dry run
        captures nothing."""
        if size in self._ready:
            return
        if size not in self._rehearsed:
            self._rehearsed.add(size)
            self._work(size)  # compiles missing kernels, which a capture cannot do
            if present() is None:
                torch.cuda.empty_cache()  # the graph needs as much memory again
        if present() is not None:
            return
        if self._memory is None:
            self._ready[size] = partial(self._work, size)
            return
        with recording(self._memory) as graph:
            self._work(size)
        self._ready[size] = graph.replay


def capture_all(captures: Sequence[Capture], report: Callable[[int, int], None]) -> None:
    """Compile what all of them need side by side, then capture one after the other. `report` gets
    the number of graphs captured so far, and of all."""
    with START.phase("kernels of graphs"), dry_run():
        for capture in captures:
            capture()
    with START.phase("CUDA graphs"):
        torch.cuda.empty_cache()  # they need as much memory again
        for done, capture in enumerate(captures):
            report(done, len(captures))
            capture()
