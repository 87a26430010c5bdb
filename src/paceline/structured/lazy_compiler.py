"""A compiler that is built for the first constraint, off the calling thread."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

from paceline.core.constraint import Constraint
from paceline.structured.backend import Grammar
from paceline.structured.compile_queue import GrammarCounts
from paceline.structured.compiler import GrammarCompiler, settle


class LazyCompiler:
    """Builds a `GrammarCompiler` with the first constraint: reading a vocabulary takes time, and
    most engines never need it. Call it from one thread."""

    def __init__(self, build: Callable[[], GrammarCompiler]) -> None:
        self._build = build
        self._thread: ThreadPoolExecutor | None = None
        self._built: Future[GrammarCompiler] | None = None

    def submit(self, constraint: Constraint, client: str = "") -> Future[Grammar]:
        if self._built is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammar compiler")
            self._built = self._thread.submit(self._build)
        if self._built.done() and self._built.exception() is None:
            return self._built.result().submit(constraint, client)
        found: Future[Grammar] = Future()
        self._built.add_done_callback(partial(pass_on, constraint, client, found))
        return found

    @property
    def counts(self) -> GrammarCounts:
        built = self._built
        if built is None or not built.done() or built.cancelled() or built.exception() is not None:
            return GrammarCounts()
        return built.result().counts

    def close(self) -> None:
        if self._built is None or self._thread is None:
            return
        self._thread.shutdown(cancel_futures=True)
        if not self._built.cancelled() and self._built.exception() is None:
            self._built.result().close()


def pass_on(
    constraint: Constraint, client: str, found: Future[Grammar], built: Future[GrammarCompiler]
) -> None:
    """Compile a constraint that waited for its compiler, unless it was cancelled meanwhile."""
    if found.cancelled():
        return
    if built.cancelled():
        found.cancel()
        return
    if (error := built.exception()) is not None:
        settle(found, error)
        return
    compiling = built.result().submit(constraint, client)
    found.add_done_callback(lambda done: done.cancelled() and compiling.cancel())
    compiling.add_done_callback(partial(copy_outcome, found))


def copy_outcome(found: Future[Grammar], compiled: Future[Grammar]) -> None:
    if compiled.cancelled():
        found.cancel()
        return
    error = compiled.exception()
    settle(found, compiled.result() if error is None else error)
