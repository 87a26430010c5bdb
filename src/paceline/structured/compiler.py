"""Compiles constraints off the calling thread, within limits, and keeps the grammars."""

from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from time import monotonic

from paceline.core.constraint import Constraint
from paceline.core.errors import GrammarTooCostly, QueueFull, RequestError
from paceline.structured.backend import Grammar, GrammarBackend, backend_class
from paceline.structured.compile_queue import CompileQueue, GrammarCache, GrammarCounts, likely_cost
from paceline.structured.guarded_matcher import GuardedGrammar
from paceline.structured.reasoning import ReasoningGrammar, ReasoningMarkers
from paceline.structured.token_table import TokenTable
from paceline.structured.worker_process import OutOfTime, WorkerNursery, WorkerProcess


@dataclass(frozen=True, slots=True)
class CompilerLimits:
    """What compiling may cost. Processor time is that of one process."""

    limit_s: float = 2.0  # processor time that a constraint may take, with all backends
    short_s: float = 0.1  # processor time that it gets at first; then it waits with the slow ones
    memory_bytes: int = 1 << 30  # bytes that compiling a constraint may take
    fill_s: float = 0.002  # seconds of processor time that a mask may take on average
    costly_s: float = 60.0  # how long a constraint that was too costly is refused without a trial
    grammars: int = 256  # grammars that are kept
    cache_bytes: int = 256 << 20  # bytes of grammars that are kept
    workers: int = 2  # constraints that are compiled at the same time, and as many slow ones
    pending: int = 1024  # different constraints that may wait; more are refused


DEFAULTS = CompilerLimits()


class TakesLonger(Exception):
    """A constraint has used up the processor time of the quick lane."""


@dataclass(eq=False)
class CompileJob:
    """A constraint that is being compiled, and the futures that wait for it."""

    constraint: Constraint
    lane: "Lane"
    waiting: list[Future[Grammar]] = field(default_factory=list[Future[Grammar]])
    clients: list[str] = field(default_factory=list[str])
    worker: WorkerProcess | None = None
    started: bool = False
    abandoned: bool = False  # every future was cancelled


class Lane:
    """Threads that compile constraints, and those that wait for them."""

    def __init__(self, threads: int, try_s: float) -> None:
        self.try_s = try_s  # processor time that a backend gets here at most
        self.queue: CompileQueue[CompileJob] = CompileQueue()
        self.threads = ThreadPoolExecutor(threads, thread_name_prefix="grammar")


class GrammarCompiler:
    """A constraint is compiled once at a time, whatever the number of requests with it.

    It is first tried out in a worker process, which can be killed. If it keeps to the limits
    there, this process compiles it again on a thread, without the interpreter lock: for most
    grammars that is faster than sending the result. The backends are tried in order.

    Every constraint begins among the quick ones. One that takes longer starts again among the slow
    ones, which have threads of their own, so quick ones do not wait for it.
    """

    def __init__(
        self, table: TokenTable, backends: tuple[str, ...], limits: CompilerLimits = DEFAULTS
    ) -> None:
        self._table, self._names, self._limits = table, backends, limits
        self.counts = GrammarCounts()
        self._lock = Lock()
        self._cache = GrammarCache(limits.grammars, limits.cache_bytes, limits.costly_s)
        self._jobs: dict[Constraint, CompileJob] = {}
        self._backends: dict[str, GrammarBackend] = {}
        self._loading = Lock()
        self._known_markers: dict[tuple[str, str], ReasoningMarkers] = {}
        self._nursery = WorkerNursery(table, self._names, limits.memory_bytes, limits.fill_s)
        self._idle: list[WorkerProcess] = []
        self._quick = Lane(limits.workers, min(limits.short_s, limits.limit_s))
        self._slow = Lane(limits.workers, limits.limit_s)

    def submit(self, constraint: Constraint, client: str = "") -> Future[Grammar]:
        """The grammar, or a RequestError that says what is wrong with the constraint.

        Clients take turns. Cancelling the future is allowed at any time. If no other future waits
        for the constraint, its compilation stops.
        """
        future: Future[Grammar] = Future()
        with self._lock:
            outcome, job = self._cache.get(constraint), self._jobs.get(constraint)
            is_known = outcome is not None or job is not None
            if not is_known and self._is_full(client):
                outcome = QueueFull("too many grammars are being compiled; try again later")
            if job is None:
                job = CompileJob(constraint, self._quick)
            if outcome is None:
                self._jobs[constraint] = job
                job.waiting.append(future)
                self._put(job, client)
            elif is_known:
                self.counts.grammar_cache_hits += 1
        if outcome is not None:
            settle(future, outcome)
        else:
            future.add_done_callback(partial(self._left, job))
        return future

    def _is_full(self, client: str) -> bool:
        """Whether no more constraints may wait. There is extra room for clients that have none."""
        waiting, most = len(self._jobs), self._limits.pending
        has_some = waiting >= most and any(client in job.clients for job in self._jobs.values())
        return has_some or waiting >= 2 * most

    def _put(self, job: CompileJob, client: str) -> None:
        """Let a job wait for one more client, unless it does or has begun."""
        if client in job.clients:
            return
        job.clients.append(client)
        if not job.started:
            job.lane.queue.put(client, job, likely_cost(job.constraint))
            job.lane.threads.submit(self._turn, job.lane)

    def close(self) -> None:
        """Stop what is being compiled; its futures are cancelled."""
        with self._lock:
            jobs = list(self._jobs.values())
        for job in jobs:
            for future in tuple(job.waiting):
                future.cancel()
        for lane in (self._quick, self._slow):
            lane.threads.shutdown(cancel_futures=True)
        for worker in self._idle:
            worker.close()
        self._idle.clear()
        self._nursery.close()

    # -- on a thread of a lane ----------------------------------------------------

    def _turn(self, lane: Lane) -> None:
        """Compile the next constraint, if one waits."""
        with self._lock:
            job = lane.queue.take()
            if job is None or job.abandoned:
                return
            job.started = True
        begun = monotonic()
        try:
            outcome: Grammar | BaseException = self._grammar_of(job, lane)
        except TakesLonger:
            self._put_among_slow(job)
            outcome = TakesLonger()
        except BaseException as error:  # noqa: BLE001 (a library's failure is an answer as well)
            outcome = error
        with self._lock:
            self._count(job, outcome, monotonic() - begun)
        if not isinstance(outcome, TakesLonger):
            self._done(job, outcome)

    def _put_among_slow(self, job: CompileJob) -> None:
        with self._lock:
            job.started, job.lane = False, self._slow
            for client in job.clients:
                self._slow.queue.put(client, job, likely_cost(job.constraint))
            self._slow.threads.submit(self._turn, self._slow)

    def _count(self, job: CompileJob, outcome: object, spent_s: float) -> None:
        self.counts.grammar_compile_s += spent_s
        if isinstance(outcome, TakesLonger):
            return
        if isinstance(outcome, BaseException):
            self.counts.grammars_refused += not job.abandoned
        else:
            self.counts.grammars_compiled += 1

    def _grammar_of(self, job: CompileJob, lane: Lane) -> Grammar:
        constraint = job.constraint
        markers = None
        if constraint.reasoning_end:
            markers = self._markers(constraint.reasoning_start, constraint.reasoning_end)
        found = None if constraint.kind == "text" else self._answer(job, lane)
        if found is not None and markers is not None:
            found = ReasoningGrammar(markers, found)
        if found is not None and not constraint.is_guarded:
            return found
        return GuardedGrammar(self._table, constraint, found, markers)

    def _answer(self, job: CompileJob, lane: Lane) -> Grammar:
        """The grammar of the answer alone, which several constraints may share."""
        constraint = job.constraint.of_answer
        if constraint == job.constraint:
            return self._compiled(job, lane, constraint)
        with self._lock:
            answer = self._cache.get(constraint)
        if answer is None:
            answer = self._compiled(job, lane, constraint)
            with self._lock:
                self._cache.put(constraint, answer)
        if isinstance(answer, RequestError):
            raise answer
        return answer

    def _markers(self, start: str, end: str) -> ReasoningMarkers:
        with self._loading:
            if (start, end) not in self._known_markers:
                self._known_markers[start, end] = ReasoningMarkers.of(self._table, start, end)
            return self._known_markers[start, end]

    def _compiled(self, job: CompileJob, lane: Lane, constraint: Constraint) -> Grammar:
        refusals: dict[str, RequestError] = {}
        left_s = self._limits.limit_s
        for name in self._names:
            if job.abandoned:
                raise CancelledError
            give_s = left_s if name == self._names[-1] else left_s / 2
            try:
                self._try_out(job, name, constraint, min(give_s, lane.try_s))
                return self._backend(name).compile(constraint)
            except OutOfTime as error:
                if lane.try_s < give_s:
                    raise TakesLonger from None
                refusals[name], left_s = error, left_s - give_s
            except RequestError as error:
                refusals[name] = error
        raise combined(refusals, self._limits.limit_s)

    def _try_out(self, job: CompileJob, name: str, constraint: Constraint, limit_s: float) -> None:
        worker = self._worker(name)
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

    def _worker(self, backend: str) -> WorkerProcess:
        """Return an idle worker that has the backend, or start one."""
        unusable: list[WorkerProcess] = []
        try:
            with self._lock:
                while self._idle:
                    worker = self._idle.pop()
                    if worker.alive and backend in worker.backends:
                        return worker
                    unusable.append(worker)
        finally:  # to close one takes time, and the step loop needs the lock
            for worker in unusable:
                worker.close()
        return self._nursery.start(backend)

    def _backend(self, name: str) -> GrammarBackend:
        with self._loading:
            if name not in self._backends:
                self._backends[name] = backend_class(name)(self._table)
            return self._backends[name]

    # -- on any thread ------------------------------------------------------------

    def _done(self, job: CompileJob, outcome: Grammar | BaseException) -> None:
        """Hand the outcome to every future that waits."""
        with self._lock:
            if self._jobs.get(job.constraint) is job:
                del self._jobs[job.constraint]
            if not job.abandoned and (
                isinstance(outcome, RequestError) or not isinstance(outcome, BaseException)
            ):
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
            for lane in (self._quick, self._slow):
                lane.queue.remove(job)
            if job.worker is not None:
                job.worker.kill()


def settle(future: Future[Grammar], outcome: Grammar | BaseException) -> None:
    """Settle a future unless it was cancelled."""
    if not future.set_running_or_notify_cancel():
        return
    if isinstance(outcome, BaseException):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


def combined(refusals: dict[str, RequestError], limit_s: float) -> RequestError:
    """The first backend's refusal, with what the others say."""
    first, *others = refusals
    texts = [str(refusals[first]), *(f"{name}: {refusals[name]}" for name in others)]
    errors = refusals.values()
    if any(isinstance(error, OutOfTime) for error in errors):
        texts.append(
            f"this server gives {limit_s:g} s to a grammar (--grammar-compile-limit-s); simplify it"
        )
    costly = any(isinstance(error, GrammarTooCostly) for error in errors)
    return (GrammarTooCostly if costly else RequestError)("; ".join(texts))


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
