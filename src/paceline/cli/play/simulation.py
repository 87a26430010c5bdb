"""Play a script: the real engine and scheduler, a toy model, and a virtual clock."""

from collections.abc import Iterator

from paceline.cli.play.history import Asked, End, History, Kind, Note, Rules
from paceline.cli.play.observer import Observer
from paceline.cli.play.synthetic_model import NEVER, STEP_S, ToyModel, step_s
from paceline.cli.play.workload_file import Ask, Script
from paceline.core.errors import QueueFull
from paceline.core.plan import Outputs, Plan
from paceline.core.request import Request, child_label
from paceline.sched.scheduler import Scheduler
from paceline.sim.loop import Loop, SimulatedTurn
from paceline.sim.runner import SimulatedDevice


class Stage:
    """Turns a script into a history, one step after the other.

    Requests arrive, wake up or are aborted before the step that the script names. They go to the
    scheduler directly, since an engine has no message to park a request; the engine runs the steps.
    """

    def __init__(self, script: Script, depth: int = 1) -> None:
        self.scheduler = Scheduler.create(**{**script.settings, "enable_kv_cache_events": True})
        self.history = History([asked(ask, script) for ask in script.asks], self._rules(depth))
        self._observer = Observer(self.scheduler, self.history)
        model = ToyModel(script.seed, script.acceptance, stops_of(script))
        device = SimulatedDevice(model.run, step_s, STEP_S)
        self._loop = Loop(self.scheduler, device, depth, observer=self)
        self._coming = list(script.asks)
        self._parked: list[Ask] = []
        self._doomed = [ask for ask in script.asks if ask.abort_step < NEVER]
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
            turn = self._loop.turn(while_idle=True)
            self.history.time = self.time
            yield turn

    # -- what the engine reports --------------------------------------------

    def planned(self, plan: Plan) -> None:
        self._observer.planned(plan, self.time, self._notes, self._gone)

    def committed(self, plan: Plan, outputs: Outputs) -> None:
        self._observer.committed(plan, outputs)

    # -- what the script wants ----------------------------------------------

    def _skip_to_next_arrival(self) -> None:
        """Nobody is here and all who come do so at a time: let that time be now."""
        step = len(self.history.columns) + 1
        by_the_clock = all(ask.arrive_step <= step for ask in self._coming)
        if self.scheduler.idle and self._coming and by_the_clock:
            self._loop.clock.advance_to(min(ask.arrive_s for ask in self._coming))

    def _arrive(self, step: int) -> dict[str, Kind]:
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
                self._notes.append(Note(Kind.REFUSED, f"{name} is refused: {error}"))
                continue
            if parked:
                self._parked.append(ask)
                self._notes.append(Note(Kind.PARKED, f"{name} is parked for {parked}"))
        return refused

    def _abort(self, step: int) -> dict[str, Kind]:
        aborted: dict[str, Kind] = {}
        for ask in [one for one in self._doomed if one.abort_step <= step]:
            if ask in self._coming:
                continue  # it arrives late, by the clock, and goes as soon as it is here
            self._doomed.remove(ask)
            name = ask.request.id
            if self.scheduler.abort(name, self.time):
                aborted[name] = Kind.ABORTED
                self.history.ends[name] = End("abort", step)
                self._notes.append(Note(Kind.ABORTED, f"{name} is aborted"))
        return aborted

    def _wake(self, step: int) -> None:
        for ask in [one for one in self._parked if one.wake_step <= step]:
            self._parked.remove(ask)
            if self.scheduler.wake(ask.request.id, self.time):
                text = f"{ask.request.id} is woken: {ask.parked} is there"
                self._notes.append(Note(Kind.PARKED, text))


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
