"""Work of several sizes as graphs, captured when a size is first asked for."""

import gc
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

Work = Callable[[Any], None]


class GraphMemory:
    """What the graphs of a runner share: what one leaves, the next may overwrite."""

    def __init__(self) -> None:
        self.pool: Any = torch.cuda.graph_pool_handle()
        self.stream = torch.cuda.Stream()


@contextmanager
def recording(memory: GraphMemory) -> Iterator[torch.cuda.CUDAGraph]:
    """What is launched inside becomes a graph and does not run."""
    graph, collects = torch.cuda.CUDAGraph(), gc.isenabled()
    torch.cuda.synchronize()
    gc.disable()  # a graph that is thrown away meanwhile would break this one
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
    """A graph for each size of some work, which leaves its outcome in memory of its own."""

    def __init__(self, work: Work, memory: GraphMemory) -> None:
        self._work, self._memory = work, memory
        self._graphs: dict[Hashable, torch.cuda.CUDAGraph] = {}

    def __contains__(self, size: Hashable) -> bool:
        return size in self._graphs

    def replay(self, size: Hashable) -> None:
        """Do the work of this size."""
        self.graph(size).replay()

    def graph(self, size: Hashable) -> torch.cuda.CUDAGraph:
        if size not in self._graphs:
            self._work(size)  # compiles what is not yet, which a capture cannot hold
            torch.cuda.empty_cache()  # a graph takes as much again, and cannot ask for it back
            with recording(self._memory) as graph:
                self._work(size)
            self._graphs[size] = graph
        return self._graphs[size]
