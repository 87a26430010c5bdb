"""Play a script: the real scheduler, a toy model, and a virtual clock."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from paceline.cli.play.history import Asked, End, History, Kind, Note, Rules
from paceline.cli.play.observer import Observer
from paceline.cli.play.synthetic_model import NEVER, STEP_S, ToyModel, step_s
from paceline.cli.play.workload_file import Ask, Script
from paceline.core.errors import QueueFull
from paceline.core.plan import Outputs, Plan, StepResult
from paceline.core.request import Request, child_label
from paceline.sched.scheduler import Scheduler


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """One call of `plan`, and the result that came back meanwhile, if any."""

    time: float  # seconds on the virtual clock, when the step was planned
    plan: Plan
    committed: Plan | None  # an earlier one, where the pipeline is deep
    outputs: Outputs | None


@dataclass(frozen=True, slots=True, eq=False)
class Flight:
    """A step on the device."""

    plan: Plan
    result: StepResult
    done: float  # seconds on the virtual clock


class Stage:
    """Turns a script into a history, one step after the other.

    Before each step those arrive, wake up or are aborted whose time has come. The device
    runs steps one after another; the host plans up to `depth` steps ahead of results.
    """

    def __init__(self, script: Script, depth: int = 1) -> None:
        self.scheduler = Scheduler.create(**{**script.settings, "enable_kv_cache_events": True})
        self.history = History([asked(ask, script) for ask in script.asks], self._rules(depth))
        self.time = 0.0
        self._observer = Observer(self.scheduler, self.history)
        self._model = ToyModel(script.seed, script.acceptance, stops_of(script))
        self._depth = depth
        self._coming = list(script.asks)
        self._parked: list[Ask] = []
        self._doomed = [ask for ask in script.asks if ask.abort_step < NEVER]
        self._flight: deque[Flight] = deque()
        self._device_free = 0.0

    def _rules(self, depth: int) -> Rules:
        config = self.scheduler.config
        return Rules(
            discipline=config.step.discipline,
            policy=config.policy.policy,
            depth=depth,
            slots=config.step.max_num_seqs,
            budget=config.step.max_num_batched_tokens,
            blocks=config.cache.num_blocks,
            block_size=config.cache.block_size,
            host_blocks=config.preemption.swap_space,
        )

    @property
    def over(self) -> bool:
        return not self._coming and not self._flight and self.scheduler.idle

    def turns(self, most_steps: int) -> Iterator[Turn]:
        """Turn until all have ended, or `most_steps` were planned."""
        while not self.over and len(self.history.columns) < most_steps:
            turn = self._turn()
            self.history.time = self.time
            yield turn

    def _turn(self) -> Turn:
        self._skip_to_next_arrival()
        step, now = len(self.history.columns) + 1, self.time
        notes: list[Note] = []
        ended = self._arrive(step, notes) | self._abort(step, notes)
        self._wake(step, notes)
        plan = self.scheduler.plan(now)
        self._observer.planned(plan, now, notes, ended)
        result = self._model.run(plan)  # an empty plan, too, tells it who left
        if not plan.empty:
            self._device_free = max(self._device_free, now) + step_s(plan)
            self._flight.append(Flight(plan, result, self._device_free))
        elif not self._flight:
            self.time += STEP_S
            return Turn(now, plan, plan, self._commit(plan, result))
        if not plan.empty and len(self._flight) < self._depth:
            return Turn(now, plan, None, None)
        oldest = self._flight.popleft()
        self.time = max(self.time, oldest.done)
        return Turn(now, plan, oldest.plan, self._commit(oldest.plan, oldest.result))

    def _commit(self, plan: Plan, result: StepResult) -> Outputs:
        outputs = self.scheduler.commit(plan, result, self.time)
        self._observer.committed(plan, outputs)
        return outputs

    # -- what the script wants ----------------------------------------------

    def _skip_to_next_arrival(self) -> None:
        """Nobody is here and all who come do so at a time: let that time be now."""
        step = len(self.history.columns) + 1
        by_the_clock = all(ask.arrive_step <= step for ask in self._coming)
        if self.scheduler.idle and self._coming and by_the_clock:
            self.time = max(self.time, min(ask.arrive_s for ask in self._coming))

    def _arrive(self, step: int, notes: list[Note]) -> dict[str, Kind]:
        """Submit those whose step and time have come; returns those that found no room."""
        due = [a for a in self._coming if a.arrive_step <= step and a.arrive_s <= self.time]
        refused: dict[str, Kind] = {}
        for ask in due:
            self._coming.remove(ask)
            name, parked = ask.request.id, ask.parked if ask.wake_step > step else ""
            try:
                self.scheduler.submit(ask.request, self.time, parked)
            except QueueFull as error:
                refused[name] = Kind.REFUSED
                self.history.ends[name] = End("refused", step)
                notes.append(Note(Kind.REFUSED, f"{name} is refused: {error}"))
                continue
            if parked:
                self._parked.append(ask)
                notes.append(Note(Kind.PARKED, f"{name} is parked for {parked}"))
        return refused

    def _abort(self, step: int, notes: list[Note]) -> dict[str, Kind]:
        aborted: dict[str, Kind] = {}
        for ask in [one for one in self._doomed if one.abort_step <= step]:
            if ask in self._coming:
                continue  # it arrives late, by the clock, and goes as soon as it is here
            self._doomed.remove(ask)
            name = ask.request.id
            if self.scheduler.abort(name, self.time):
                aborted[name] = Kind.ABORTED
                self.history.ends[name] = End("abort", step)
                notes.append(Note(Kind.ABORTED, f"{name} is aborted"))
        return aborted

    def _wake(self, step: int, notes: list[Note]) -> None:
        for ask in [one for one in self._parked if one.wake_step <= step]:
            self._parked.remove(ask)
            if self.scheduler.wake(ask.request.id, self.time):
                text = f"{ask.request.id} is woken: {ask.parked} is there"
                notes.append(Note(Kind.PARKED, text))


def stops_of(script: Script) -> dict[str, int]:
    """Which output token is the stop token, by row label."""
    stops: dict[str, int] = {}
    for ask in script.asks:
        for child, stop_at in enumerate(ask.stop_at):
            only = ask.request.width == 1
            stops[child_label(ask.request.id, -1 if only else child)] = stop_at
    return stops


def asked(ask: Ask, script: Script) -> Asked:
    """The label of a request; what all have in common is left out."""
    request = ask.request
    tags: list[str] = []
    if any(other.request.priority for other in script.asks):
        tags.append(f"p{request.priority}")
    tags += [text for text in (request.tenant, request.adapter) if text]
    if request.deadline is not None:
        tags.append(f"{request.deadline * 1000:.0f}ms")
    if request.width > 1:
        tags.append(family_tag(request))
    most = request.max_tokens or 0
    return Asked(request.id, len(request.prompt), most, " ".join(tags), request.width)


def family_tag(request: Request) -> str:
    """How a request comes to several sequences."""
    if request.beam_width:
        return f"{request.width} beams"
    return f"best {request.n} of {request.width}" if request.silent else f"n={request.n}"
