"""Loads that are recordings of a server: how would other settings have served its requests?"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from paceline.core.arrays import I32
from paceline.core.errors import ConfigError
from paceline.core.events import Happened
from paceline.core.plan import Outputs, Plan
from paceline.core.request import Finish, Sequence, child_label
from paceline.core.settings.features import SpeculationConfig
from paceline.sched.replay.reader import RecordingEnd, files_of_run
from paceline.sched.replay.records import MAGIC, RecordingError
from paceline.sched.replay.replayer import Replay
from paceline.simulator.loads import UNCUT, Clients, Workload
from paceline.simulator.requests import SimulatedRequest

# What a simulation decides by itself, or cannot model.
UNUSED = (
    *("attention_groups", "enable_kv_cache_events", "state_blocks"),
    *("model_fingerprint", "system_fingerprint"),
    *(one.name for one in fields(SpeculationConfig)),
)


def is_recording(path: Path) -> bool:
    """Does the file begin as a recording does?"""
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None


@dataclass(frozen=True, slots=True)
class RecordedTimes:
    """What a request took in the recorded run; None: it did not come so far, or had its first
    token in another engine."""

    ttft_s: float | None
    e2e_s: float | None


@dataclass(frozen=True, slots=True, eq=False)
class RecordedRequest:
    """A request that ended in a recording, or one of its several sequences: the life of the
    request, and the tokens that were generated; none if only the best were reported."""

    label: str
    sequence: Sequence
    tokens: I32


@dataclass(frozen=True, slots=True, eq=False)
class LoadOfRun:
    """The content of a recording; see `RecordedLoad`."""

    workload: Workload
    settings: Mapping[str, Any]
    times: Mapping[str, RecordedTimes]
    ending: str


class RecordedRequests(Replay):
    """Replays a recording and keeps its requests, their tokens and their times."""

    def __init__(self, *paths: Path) -> None:
        super().__init__(*paths)
        self.ended: list[RecordedRequest] = []
        self._new: dict[str, list[I32]] = {}  # tokens of open requests
        self._taken: set[str] = set()
        self.on_commit = self._keep_tokens

    def _keep_tokens(self, _: Plan, outputs: Outputs) -> None:
        names, children = outputs.request_id.tolist(), outputs.child.tolist()
        new = outputs.ids, outputs.count.tolist()
        for name, child, ids, count in zip(names, children, *new, strict=True):
            if count:
                self._new.setdefault(child_label(name, child), []).append(ids[:count])

    def read(self) -> None:
        """Replay all of it."""
        for plan in self.plans():
            self._take(plan.finished)
        left = [name for name in self.request_ids if name not in self._taken or name in self._new]
        self._take(name for name in left if not self.scheduler.view.is_live(name))
        if self.divergence is not None:
            raise ConfigError(f"{self.reader.path}: the replay diverged, {self.divergence}")

    def _take(self, names: Iterable[str]) -> None:
        """Keep requests that have ended."""
        for name in names:
            self._taken.add(name)
            sequence = self.scheduler.view.ended(name)
            if sequence is None:
                self._new.pop(name, None)
                continue
            request = sequence.request
            for child in request.open_children if request.width > 1 else [-1]:
                label = child_label(name, child)
                before = request.known(max(child, 0))[len(request.prompt) :]  # in another engine
                tokens = np.concatenate([before, *self._new.pop(label, [])]).astype(np.int32)
                self.ended.append(RecordedRequest(label, sequence, tokens))


@dataclass(frozen=True)
class RecordedLoad:
    """The requests of a recording that ended in it.

    A request that ran to its end has the same outputs again. One that was aborted has all that
    it may have, and its client leaves as soon as it did then. Several sequences of a request are
    requests of their own.
    """

    path: Path
    clients: Clients = field(default_factory=Clients)
    count: int | None = None  # the first so many; None: all
    speed: float = 1.0
    max_input_len: int = UNCUT
    max_output_len: int = UNCUT

    def workload(self) -> Workload:
        return self._found.workload

    @property
    def settings(self) -> Mapping[str, Any]:
        """Those of the recorded scheduler, as far as they apply to a simulation."""
        return self._found.settings

    @property
    def times(self) -> Mapping[str, RecordedTimes]:
        """By request id."""
        return self._found.times

    @property
    def ending(self) -> str:
        """Why not all of the run is in the load; empty if all of it is."""
        return self._found.ending

    def _replay(self) -> RecordedRequests:
        try:
            replay = RecordedRequests(*files_of_run(self.path))
            replay.read()
        except RecordingError as error:
            raise ConfigError(str(error)) from None
        except OSError as error:
            raise ConfigError(f"{self.path}: cannot be read: {error.strerror}") from None
        if not replay.ended:
            raise ConfigError(f"{self.path}: no request ended in this recording")
        return replay

    @cached_property
    def _found(self) -> LoadOfRun:
        replay = self._replay()
        config = replay.scheduler.config
        ended = sorted(replay.ended, key=lambda one: one.sequence.arrival)[: self.count]
        begun = ended[0].sequence.arrival
        requests: list[SimulatedRequest] = []
        outputs: dict[str, I32] = {}
        times: dict[str, RecordedTimes] = {}
        for number, one in enumerate(ended):
            made = request_of(one, begun, config.step.max_model_len)
            name = made.id if made.id not in outputs else f"{made.id}#{number}"
            requests.append(self._cut(replace(made, id=name)))
            outputs[name], times[name] = one.tokens, times_of(one.sequence)
        settings = {name: value for name, value in config.to_dict().items() if name not in UNUSED}
        end = replay.reader.ending
        ending = "" if end in (RecordingEnd.CLOSED, RecordingEnd.UNREAD) else end.value
        return LoadOfRun(Workload(self.clients.of(requests), outputs), settings, times, ending)

    def _cut(self, one: SimulatedRequest) -> SimulatedRequest:
        return replace(
            one,
            at_s=one.at_s / self.speed,
            content=one.content[: self.max_input_len],
            output_len=min(one.output_len, self.max_output_len),
        )


def request_of(recorded: RecordedRequest, begun: float, max_model_len: int) -> SimulatedRequest:
    one, request = recorded.sequence, recorded.sequence.request
    room = max(max_model_len - len(request.prompt), 1)
    is_whole = one.finish in (Finish.STOP, Finish.LENGTH) and len(recorded.tokens) > 0
    most = min(request.max_tokens or room, room)
    return SimulatedRequest(
        id=recorded.label,
        at_s=one.arrival - begun,
        content=request.prompt,
        output_len=len(recorded.tokens) if is_whole else most,
        tenant=request.tenant,
        priority=request.priority,
        deadline_s=request.deadline,
        token_deadline_s=request.token_deadline,
        cache_salt=request.cache_salt,
        leaves_after_s=one.life[-1].time - one.arrival if one.finish is Finish.ABORT else inf,
    )


def times_of(one: Sequence) -> RecordedTimes:
    times = {moment.happened: moment.time for moment in reversed(one.life)}  # the first of each
    first = None if Happened.CONTINUED in times else times.get(Happened.FIRST_TOKEN)
    ended = one.life[-1].time if one.finish in (Finish.STOP, Finish.LENGTH) else None
    return RecordedTimes(
        None if first is None else first - one.arrival,
        None if ended is None else ended - one.arrival,
    )
