"""Play a script: the real engine and scheduler, a toy model, and a virtual clock."""

from collections.abc import Iterator

from paceline.core.errors import QueueFull
from paceline.core.plan import Outputs, Plan
from paceline.core.request import Request, child_label
from paceline.engine.long_work import interrupts_deferred
from paceline.engine.loop.ports import StepObserver
from paceline.sched.scheduler import Scheduler
from paceline.testing.loop import Loop, SimulatedTurn
from paceline.testing.runner import SimulatedDevice
from paceline.viewer.play.history import End, History, Kind, Note, PlayedRequest, Rules
from paceline.viewer.play.observer import Observer
from paceline.viewer.play.synthetic_model import NEVER, STEP_S, ToyModel, step_s
from paceline.viewer.play.workload_file import Script, ScriptedRequest


class Stage(StepObserver):
    """Turns a script into a history, one step after the other.

    Requests arrive, wake or are aborted before the step that the script names. They go to the
    scheduler directly; the engine runs the steps.
    """

    def __init__(self, script: Script, depth: int = 1) -> None:
        self.scheduler = Scheduler.create(**{**script.settings, "enable_kv_cache_events": True})
        self.history = History([played(one, script) for one in script.requests], self._rules(depth))
        self._observer = Observer(self.scheduler, self.history)
        model = ToyModel(script.seed, script.acceptance, stops_of(script))
        device = SimulatedDevice(model.run, step_s, STEP_S)
        self._loop = Loop(self.scheduler, device, depth, observer=self)
        self._coming = list(script.requests)
        self._parked: list[ScriptedRequest] = []
        self._doomed = [one for one in script.requests if one.abort_step < NEVER]
        self._notes: list[Note] = []  # what happened before the step to come
        self._gone: dict[str, Kind] = {}  # requests that ended before the step to come

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
    def time(self) -> float:
        """Seconds on the virtual clock."""
        return self._loop.clock()

    @property
    def over(self) -> bool:
        return not self._coming and self.scheduler.idle

    def turns(self, most_steps: int) -> Iterator[SimulatedTurn]:
        """Turn until all have ended, or `most_steps` were planned."""
        while not self.over and len(self.history.columns) < most_steps:
            self._skip_to_next_arrival()
            step = len(self.history.columns) + 1
            self._notes = []
            self._gone = self._arrive(step) | self._abort(step)
            self._wake(step)
            with interrupts_deferred():  # the history has whole steps only
                turn = self._loop.turn(while_idle=True)
            self.history.time = self.time
            yield turn

    # -- called by the engine -----------------------------------------------

    def planned(self, plan: Plan) -> None:
        self._observer.planned(plan, self.time, self._notes, self._gone)

    def committed(self, plan: Plan, outputs: Outputs) -> None:
        self._observer.committed(plan, outputs)

    # -- what the script says -----------------------------------------------

    def _skip_to_next_arrival(self) -> None:
        """If no request is live and the next ones arrive at a time, advance the clock to it."""
        step = len(self.history.columns) + 1
        by_the_clock = all(one.arrive_step <= step for one in self._coming)
        if self.scheduler.idle and self._coming and by_the_clock:
            self._loop.clock.advance_to(min(one.arrive_s for one in self._coming))

    def _arrive(self, step: int) -> dict[str, Kind]:
        """Submit the requests that are due; returns those that were refused."""
        due = [a for a in self._coming if a.arrive_step <= step and a.arrive_s <= self.time]
        refused: dict[str, Kind] = {}
        for one in due:
            self._coming.remove(one)
            name, parked = one.request.id, one.parked if one.wake_step > step else ""
            try:
                self.scheduler.submit(one.request, self.time, parked)
            except QueueFull as error:
                refused[name] = Kind.REFUSED
                self.history.ends[name] = End("refused", step)
                self._notes.append(Note(Kind.REFUSED, f"{name} is refused: {error}"))
                continue
            if parked:
                self._parked.append(one)
                self._notes.append(Note(Kind.PARKED, f"{name} is parked for {parked}"))
        return refused

    def _abort(self, step: int) -> dict[str, Kind]:
        aborted: dict[str, Kind] = {}
        for one in [one for one in self._doomed if one.abort_step <= step]:
            if one in self._coming:
                continue  # it arrives later, by the clock, and is aborted then
            self._doomed.remove(one)
            name = one.request.id
            if self.scheduler.abort(name, self.time):
                aborted[name] = Kind.ABORTED
                self.history.ends[name] = End("abort", step)
                self._notes.append(Note(Kind.ABORTED, f"{name} is aborted"))
        return aborted

    def _wake(self, step: int) -> None:
        for one in [one for one in self._parked if one.wake_step <= step]:
            self._parked.remove(one)
            if self.scheduler.wake(one.request.id, self.time):
                text = f"{one.request.id} is woken: {one.parked} is there"
                self._notes.append(Note(Kind.PARKED, text))


def stops_of(script: Script) -> dict[str, int]:
    """Index of the stop token in the output, by row label."""
    stops: dict[str, int] = {}
    for one in script.requests:
        for child, stop_at in enumerate(one.stop_at):
            only = one.request.width == 1
            stops[child_label(one.request.id, -1 if only else child)] = stop_at
    return stops


def played(one: ScriptedRequest, script: Script) -> PlayedRequest:
    """The label of a request, without what all requests have in common."""
    request = one.request
    tags: list[str] = []
    if any(other.request.priority for other in script.requests):
        tags.append(f"p{request.priority}")
    tags += [text for text in (request.tenant, request.adapter) if text]
    if request.deadline is not None:
        tags.append(f"{request.deadline * 1000:.0f}ms")
    if request.width > 1:
        tags.append(family_tag(request))
    most = request.max_tokens or 0
    return PlayedRequest(request.id, len(request.prompt), most, " ".join(tags), request.width)


def family_tag(request: Request) -> str:
    """Why a request has several sequences."""
    if request.beam_width:
        return f"{request.width} beams"
    return f"best {request.n} of {request.width}" if request.silent else f"n={request.n}"
