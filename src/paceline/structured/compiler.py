"""Compiles constraints off the calling thread, within limits, and keeps the grammars."""

from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from time import monotonic

from paceline.core.constraint import Constraint
from paceline.core.errors import GrammarTooCostly, QueueFull, RequestError
from paceline.structured.backend import (
    Grammar,
    GrammarBackend,
    backend_names,
    load_backend,
)
from paceline.structured.cache import GrammarCache
from paceline.structured.grammar_counts import GrammarCounts
from paceline.structured.reasoning_markers import ReasoningMarkers
from paceline.structured.reasoning_matcher import ReasoningGrammar
from paceline.structured.token_table import TokenTable
from paceline.structured.worker_process import WorkerProcess


@dataclass(frozen=True, slots=True)
class CompilerLimits:
    """What compiling may cost."""

    limit_s: float = 10.0  # seconds that a constraint may take to compile
    first_s: float = 2.0  # seconds that a backend gets while there is another to try
    memory_bytes: int = 1 << 30  # bytes that compiling a constraint may take
    fill_s: float = 0.002  # seconds of processor time that a mask may take on average
    grammars: int = 256  # grammars that are kept
    cache_bytes: int = 256 << 20  # bytes of grammars that are kept
    workers: int = 2  # constraints that are compiled at the same time
    pending: int = 1024  # different constraints that may wait; more are refused


DEFAULTS = CompilerLimits()


@dataclass(eq=False)
class CompileJob:
    """A constraint that is being compiled, and the futures that wait for it."""

    constraint: Constraint
    waiting: list[Future[Grammar]] = field(default_factory=list[Future[Grammar]])
    worker: WorkerProcess | None = None
    abandoned: bool = False  # every future was cancelled


class GrammarCompiler:
    """A constraint is compiled once at a time, whatever the number of requests with it.

    It is first tried out in a worker process, which can be killed. If it keeps to the limits
    there, this process compiles it again on a thread, without the interpreter lock: for most
    grammars that is faster than sending the result. The backends are tried in order.
    """

    def __init__(
        self, table: TokenTable, backend: str = "auto", limits: CompilerLimits = DEFAULTS
    ) -> None:
        self._table, self._names, self._limits = table, backend_names(backend), limits
        self.counts = GrammarCounts()
        self._lock = Lock()
        self._cache = GrammarCache(limits.grammars, limits.cache_bytes)
        self._jobs: dict[Constraint, CompileJob] = {}
        self._backends: dict[str, GrammarBackend] = {}
        self._loading = Lock()
        self._known_markers: dict[tuple[str, str], ReasoningMarkers] = {}
        self._idle: list[WorkerProcess] = []
        self._threads = ThreadPoolExecutor(limits.workers, thread_name_prefix="grammar")

    def submit(self, constraint: Constraint) -> Future[Grammar]:
        """The grammar, or a RequestError that says what is wrong with the constraint.

        Cancelling the future is allowed at any time. If no other future waits for the constraint,
        its compilation stops.
        """
        future: Future[Grammar] = Future()
        with self._lock:
            outcome, job = self._cache.get(constraint), self._jobs.get(constraint)
            is_new = outcome is None and job is None
            if is_new and len(self._jobs) >= self._limits.pending:
                outcome = QueueFull("too many grammars are being compiled; try again later")
            if job is None:
                job = CompileJob(constraint)
            if outcome is None:
                self._jobs[constraint] = job
                job.waiting.append(future)
            if outcome is not None and not is_new:
                self.counts.grammar_cache_hits += 1
        if outcome is not None:
            settle(future, outcome)
            return future
        future.add_done_callback(partial(self._left, job))
        if is_new:
            self._threads.submit(self._compile, job).add_done_callback(partial(self._done, job))
        return future

    def close(self) -> None:
        """Stop what is being compiled; its futures are cancelled."""
        with self._lock:
            jobs = list(self._jobs.values())
        for job in jobs:
            for future in tuple(job.waiting):
                future.cancel()
        self._threads.shutdown(cancel_futures=True)
        for worker in self._idle:
            worker.close()
        self._idle.clear()

    # -- on a thread of the pool ------------------------------------------------

    def _compile(self, job: CompileJob) -> Grammar:
        begun, refused = monotonic(), True
        try:
            found = self._grammar_of(job)
            refused = False
            return found
        finally:
            with self._lock:
                counts = self.counts
                counts.grammar_compile_s += monotonic() - begun
                if refused:
                    counts.grammars_refused += not job.abandoned
                else:
                    counts.grammars_compiled += 1

    def _grammar_of(self, job: CompileJob) -> Grammar:
        constraint = job.constraint
        if not constraint.reasoning_end:
            return self._compiled(job, constraint)
        with self._lock:
            answer = self._cache.get(constraint.of_answer)
        if answer is None:
            answer = self._compiled(job, constraint.of_answer)
            with self._lock:
                self._cache.put(constraint.of_answer, answer)
        if isinstance(answer, RequestError):
            raise answer
        markers = self._markers(constraint.reasoning_start, constraint.reasoning_end)
        return ReasoningGrammar(markers, answer)

    def _markers(self, start: str, end: str) -> ReasoningMarkers:
        with self._loading:
            if (start, end) not in self._known_markers:
                self._known_markers[start, end] = ReasoningMarkers.of(self._table, start, end)
            return self._known_markers[start, end]

    def _compiled(self, job: CompileJob, constraint: Constraint) -> Grammar:
        refusals: dict[str, RequestError] = {}
        for name in self._names:
            if job.abandoned:
                raise CancelledError
            last = name == self._names[-1]
            limit_s = self._limits.limit_s if last else self._limits.first_s
            try:
                self._try_out(job, name, constraint, limit_s)
                return self._backend(name).compile(constraint)
            except RequestError as error:
                refusals[name] = error
        raise combined(refusals)

    def _try_out(self, job: CompileJob, name: str, constraint: Constraint, limit_s: float) -> None:
        worker = self._worker()
        with self._lock:
            job.worker = worker
            if job.abandoned:
                worker.kill()
        try:
            worker.check(name, constraint, limit_s)
        finally:
            with self._lock:
                job.worker = None
                if alive := worker.alive:
                    self._idle.append(worker)
            if not alive:
                worker.close()

    def _worker(self) -> WorkerProcess:
        with self._lock:
            while self._idle:
                worker = self._idle.pop()
                if worker.alive:
                    return worker
                worker.close()
        return WorkerProcess(self._table, self._limits.memory_bytes, self._limits.fill_s)

    def _backend(self, name: str) -> GrammarBackend:
        with self._loading:
            if name not in self._backends:
                self._backends[name] = load_backend(name, self._table)
            return self._backends[name]

    # -- on any thread ------------------------------------------------------------

    def _done(self, job: CompileJob, done: Future[Grammar]) -> None:
        """Hand the outcome to every future that waits."""
        error = CancelledError() if done.cancelled() else done.exception()
        outcome = done.result() if error is None else error
        with self._lock:
            if self._jobs.get(job.constraint) is job:
                del self._jobs[job.constraint]
            # A limit may be exceeded because the machine is busy, so that refusal is not kept.
            if not isinstance(outcome, BaseException) or type(outcome) is RequestError:
                self._cache.put(job.constraint, outcome)
            waiting = tuple(job.waiting)
        for future in waiting:
            settle(future, outcome)

    def _left(self, job: CompileJob, future: Future[Grammar]) -> None:
        """A future is done. If it was cancelled and was the last, stop compiling."""
        if not future.cancelled():
            return
        with self._lock:
            job.waiting.remove(future)
            job.abandoned = not job.waiting
            if not job.abandoned:
                return
            if self._jobs.get(job.constraint) is job:
                del self._jobs[job.constraint]
            if job.worker is not None:
                job.worker.kill()


def settle(future: Future[Grammar], outcome: Grammar | BaseException) -> None:
    """Unless it was cancelled."""
    if not future.set_running_or_notify_cancel():
        return
    if isinstance(outcome, BaseException):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


def combined(refusals: dict[str, RequestError]) -> RequestError:
    """The first backend's refusal, with what the others say."""
    first, *others = refusals
    texts = [str(refusals[first]), *(f"{name}: {refusals[name]}" for name in others)]
    costly = any(isinstance(error, GrammarTooCostly) for error in refusals.values())
    return (GrammarTooCostly if costly else RequestError)("; ".join(texts))
