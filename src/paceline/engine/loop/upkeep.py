"""Changes of the model between two steps: other weights, sleep and wake-up."""

import json
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal, Protocol, get_args

from paceline.core.errors import PacelineError, RequestError, WeightsLost
from paceline.engine.loop.messages import (
    Arrivals,
    EngineFailed,
    EngineUnavailable,
    Mode,
    Question,
    Verb,
)
from paceline.sched.scheduler import Scheduler

Pause = Literal["", "new", "all"]
Answer = Future[Any]
MEMORY = ("weights", "kv_cache")
SCHEDULING = "scheduling"
TAGS = (*MEMORY, SCHEDULING)
LEVELS = (0, 1, 2)
UPKEEP_VERBS: tuple[Verb, ...] = (
    *("pause", "resume", "paused"),
    *("update_weights", "weight_version", "sleep", "wake_up", "is_sleeping"),
)


class NewWeights(Protocol):
    """Weights that were opened and fit the model."""

    @property
    def version(self) -> str: ...


class ModelMemory(Protocol):
    """The weights and the KV memory of a runner. `open` may be called beside steps, the other
    methods while no step is in flight; all of them on a thread that is not the engine's."""

    @property
    def fingerprint(self) -> str:
        """Names the weights in use: other weights have another one."""
        ...

    @property
    def version(self) -> str:
        """What users call them."""
        ...

    def check_sleep(self, level: int) -> None:
        """RequestError if the memory cannot be released."""
        ...

    def open(self, path: str, version: str) -> NewWeights:
        """RequestError if the files do not fit. Without a path, the files of the start."""
        ...

    def load(self, weights: Any) -> None:
        """RequestError: the weights in use stay. WeightsLost: there are none any more."""
        ...

    def sleep(self, level: int) -> None:
        """Release the KV memory, and the weights: to the host (1), or for good (2)."""
        ...

    def wake(self, tags: Sequence[str]) -> None:
        """Take memory again for "weights" or "kv_cache"."""
        ...


class ChangeStage(Enum):
    NEW = 0
    PREPARED = 1  # beside steps
    HELD = 2  # until no step is in flight
    APPLIED = 3


def nothing(_prepared: Any = None) -> Any:
    """There is nothing to do."""


@dataclass(slots=True, eq=False)
class ModelChange:
    """A change of the model, from the question to the answer.

    mode      what happens to open requests: aborted, waited for, or kept to be computed again
    prepare   what may run beside steps
    apply     what runs while no step is in flight, with what `prepare` returned
    done      follows on the engine's thread; returns the answer
    forgets   is the KV of the present weights lost?
    work      the latest of `prepare` and `apply`
    """

    mode: Mode
    answer: Answer
    apply: Callable[[Any], Any] = nothing
    done: Callable[[Any], Any] = nothing
    prepare: Callable[[], Any] = nothing
    forgets: bool = True
    stage: ChangeStage = ChangeStage.NEW
    work: Future[Any] | None = None


def checked(name: str, value: Any, known: Sequence[Any]) -> Any:
    """RequestError if a value is not one of those that are known."""
    if value not in known:
        raise RequestError(f"{name} is {value!r}; it must be one of {', '.join(map(str, known))}")
    return value


class Upkeep:
    """Makes one change of the model after the other, and pauses the scheduler meanwhile.

    memory     of the runner; None: the model cannot be changed
    away       tags of what is asleep
    missing    why there are no weights; "": there are some
    """

    def __init__(
        self,
        scheduler: Scheduler,
        clock: Callable[[], float],
        abort_all: Callable[[], None],
        news: Callable[[], None],
    ) -> None:
        """`abort_all` aborts every open request; `news`, on any thread, has `advance` called."""
        self.memory: ModelMemory | None = None
        self._abort_all, self._news = abort_all, news
        self.away: set[str] = set()
        self.missing = ""
        self._scheduler, self._clock = scheduler, clock
        self._changes: deque[ModelChange] = deque()
        self._thread: ThreadPoolExecutor | None = None
        self._asked: Pause = ""  # by a client
        self._held: Pause = ""  # for a change, or while something is away
        self._arrivals: Arrivals = "refuse"  # while something is away

    @property
    def polls(self) -> bool:
        """Must `advance` be called again soon, whether or not there are news?"""
        return any(change.stage is ChangeStage.HELD for change in self._changes)

    @property
    def refusal(self) -> EngineUnavailable | None:
        """Why new requests are refused; None if they are not."""
        if self.missing:
            return EngineUnavailable(self.missing)
        if self.away and self._arrivals == "refuse":
            asleep = ", ".join(sorted(self.away))
            return EngineUnavailable(f"the engine is asleep ({asleep}); call wake_up")
        return None

    def figures(self) -> dict[str, Any]:
        """What is asleep, in vLLM's words."""
        asleep = "weights" in self.away
        gone = asleep and bool(self.missing)
        state = "discard_all" if gone else "weights_offloaded" if asleep else "awake"
        return {"sleep": state}

    # -- questions ------------------------------------------------------------

    def ask(self, question: Question) -> Any:
        """The answer, or a future with it."""
        match question.verb:
            case "paused":
                return self._asked
            case "pause" | "resume":
                modes = ("",) if question.verb == "resume" else ("new", "all")
                self._asked = checked("mode", question.argument, modes)
                self._pause()
                return None
            case "is_sleeping":
                return bool(self.away)
            case "weight_version":
                return self._present.version
            case _:
                given: dict[str, Any] = json.loads(question.argument)
                begin = {"update_weights": self.update, "sleep": self.sleep}
                return begin.get(question.verb, self.wake_up)(**given)

    @property
    def _present(self) -> ModelMemory:
        if self.memory is None:
            raise RequestError("the weights and the memory of this engine cannot be changed")
        return self.memory

    def update(self, path: str = "", version: str = "", mode: Mode = "wait") -> Answer:
        """Use other weights; the answer is their version. RequestError if they do not fit."""
        memory, answer = self._present, Answer()

        def prepare() -> NewWeights:
            if "weights" in self.away:
                raise RequestError("the weights are asleep; call wake_up with tags=weights before")
            return memory.open(path, version)

        def loaded(_: Any) -> str:
            self.missing = ""
            return memory.version

        return self._begin(ModelChange(mode, answer, memory.load, loaded, prepare))

    def sleep(self, level: int = 1, mode: Mode = "abort", arrivals: Arrivals = "refuse") -> Answer:
        """Release memory. Level 0 only stops steps, and keeps KV."""
        memory, answer = self._present, Answer()
        checked("level", level, LEVELS)
        checked("arrivals", arrivals, get_args(Arrivals))
        tags = MEMORY if level else (SCHEDULING,)
        if level:
            memory.check_sleep(level)

        def release(_: Any) -> None:
            if level and not self.away & {*MEMORY}:
                memory.sleep(level)

        def asleep(_: Any) -> None:
            self._arrivals = arrivals
            self.away |= {*tags}
            if level == MOST_LEVEL:
                self.missing = (
                    "the engine slept at level 2, which drops its weights; call update_weights, "
                    "without a path for those of its start"
                )

        return self._begin(ModelChange(mode, answer, release, asleep, forgets=level > 0))

    def wake_up(self, tags: Sequence[str] | None = None) -> Answer:
        """Take memory again, of some tags or of all, and plan steps when none is away."""
        for tag in tags or ():
            checked("tags", tag, TAGS)
        memory, answer = self._present, Answer()

        def wanted() -> set[str]:
            return self.away & {*(tags or TAGS)}

        def wake(_: Any) -> None:
            if found := [tag for tag in MEMORY if tag in wanted()]:
                memory.wake(found)

        def awake(_: Any) -> None:
            self.away -= wanted()

        return self._begin(ModelChange("keep", answer, wake, awake, forgets=False))

    def _begin(self, change: ModelChange) -> Answer:
        checked("mode", change.mode, get_args(Mode))
        self._changes.append(change)
        self._news()
        return change.answer

    # -- changes --------------------------------------------------------------

    def advance(self, in_flight: int) -> None:
        """Go on with the changes, with so many steps in flight. Call it before a step is
        planned."""
        while self._changes and self._advanced(self._changes[0], in_flight):
            pass

    def _advanced(self, change: ModelChange, in_flight: int) -> bool:
        """Did the change reach its next stage?"""
        if change.work is not None and not change.work.done():
            return False
        match change.stage:
            case ChangeStage.NEW:
                self._run(change, change.prepare)
                change.stage = ChangeStage.PREPARED
            case ChangeStage.PREPARED:
                if self._has_failed(change):
                    return True
                self._held = "new" if change.mode == "wait" and not self._held else "all"
                self._pause()
                if change.mode == "abort":
                    self._abort_all()
                change.stage = ChangeStage.HELD
            case ChangeStage.HELD:
                return self._applied(change, in_flight)
            case ChangeStage.APPLIED:
                self._end(change)
        return True

    def _applied(self, change: ModelChange, in_flight: int) -> bool:
        runs = self._scheduler.view.running if self._held == "new" else 0
        if in_flight or runs or not (change.forgets is False or self._forget()):
            return False
        assert change.work is not None
        prepared = change.work.result()
        change.stage = ChangeStage.APPLIED
        self._run(change, lambda: change.apply(prepared))
        return True

    def _end(self, change: ModelChange) -> None:
        assert change.work is not None
        if isinstance(lost := change.work.exception(), WeightsLost):
            self.missing = f"{lost}; call update_weights again"
        if not self._has_failed(change):
            self._changes.popleft()
            answer = change.done(change.work.result())
            change.answer.set_result(answer)
        if change.forgets:
            self._forget()  # the weights may be others now
        self._held = "all" if self.away or self.missing else ""
        self._pause()

    def _forget(self) -> bool:
        """Forget all KV. False while a transfer holds blocks."""
        return self._scheduler.use_weights(self._present.fingerprint, self._clock())

    def _has_failed(self, change: ModelChange) -> bool:
        """Answer with the error of the latest work, if it has one."""
        assert change.work is not None
        if (error := change.work.exception()) is None:
            return False
        self._changes.popleft()
        known = isinstance(error, PacelineError)
        change.answer.set_exception(error if known else EngineFailed(f"{error!r}"))
        return True

    def _run(self, change: ModelChange, work: Callable[[], Any]) -> None:
        if work is nothing:
            change.work = Answer()
            change.work.set_result(None)
            return
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="upkeep")
        change.work = self._thread.submit(work)
        change.work.add_done_callback(lambda _: self._news())

    def _pause(self) -> None:
        """Pause the scheduler for clients and for changes."""
        both = self._asked, self._held
        mode: Pause = "all" if "all" in both else self._asked or self._held
        if mode == self._scheduler.paused:
            return
        if mode:
            self._scheduler.pause(mode)
        else:
            self._scheduler.resume()

    def fail(self, reason: str) -> None:
        """The engine has stopped: no change is made any more."""
        while self._changes:
            answer = self._changes.popleft().answer
            answer.set_exception(EngineFailed(reason))

    def close(self) -> None:
        """Wait for a change that is under way, and make no other."""
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)
        self.fail("the engine is shut down")


MOST_LEVEL = max(LEVELS)
