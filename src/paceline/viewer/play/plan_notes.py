"""Describe what a plan changes: requests that join, leave, fork, return or have to wait."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, cast

import numpy as np

from paceline.core.errors import PacelineError, nearest
from paceline.core.events import Happened, Moment
from paceline.core.plan import Admitted, Ended, Plan
from paceline.sched.explain.journal import Gate
from paceline.sched.explain.sentences import plural, tokens
from paceline.sched.scheduler import Scheduler
from paceline.viewer.play.history import Kind, Note, Rules, line_of, spoken


def blocks(count: int) -> str:
    return plural(count, "block")


def listed(names: Sequence[str]) -> str:
    """Names in a sentence: a, b and c."""
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


@dataclass(frozen=True, slots=True)
class Arrival:
    """A sequence that takes a slot in this step, and how."""

    new: Admitted
    request: str
    child: int  # -1: the only one of its request
    kind: Kind
    leads: bool  # does it compute what the sequences of its request share?

    @property
    def line(self) -> str:
        return line_of(self.request, self.child)


Group = list[Arrival]  # of one request and one kind
CLOSED = {  # why no request is admitted, by the reason of a gate that is short of nothing
    "room": "its policy lets it wait",
    "preempted": "no request is admitted in a step that preempts",
    "decodes": "this step is for requests that decode",
    "prefill": "this step is for prompts that have begun",
    "swapping": "it is still being copied to the host",
    "paused": "admission is paused",
}
FROM_ANOTHER = (Kind.FORKED, Kind.REPLACED)


def grouped(arrivals: Iterable[Arrival]) -> list[Group]:
    """Arrivals by note; sequences that begin as copies of others come last."""
    groups: dict[tuple[str, Kind, bool], Group] = {}
    for one in arrivals:
        alone = one.leads and one.kind is Kind.AGAIN  # the others fork from it later
        groups.setdefault((one.request, one.kind, alone), []).append(one)
    return sorted(groups.values(), key=lambda group: group[0].kind in FROM_ANOTHER)


class Notes:
    """Reads plans and the journal of the scheduler; keeps no state of its own."""

    def __init__(self, scheduler: Scheduler, rules: Rules) -> None:
        self._view = scheduler.view
        self._rules = rules

    # -- what a plan changes ------------------------------------------------

    def of(self, plan: Plan, arrivals: Iterable[Arrival], filling: dict[int, str]) -> list[Note]:
        """Notes on a plan. `filling` names the request that computes a block in this step."""
        notes = [self._leaving(name) for name in plan.preempted if self._view.is_live(name)]
        for group in grouped(arrivals):
            first = group[0]
            if first.kind is Kind.RETURNED:
                notes.append(self._returning(group, plan.step))
            elif first.kind is Kind.REPLACED:
                notes.append(self._replacing(group, plan))
            elif first.kind is Kind.FORKED or not first.leads:
                notes.append(self._forking(group, plan))
            else:
                notes.append(self._joining(first, filling, plan.step))
        return notes

    def moment(self, request_id: str, happened: Happened, step: int) -> Moment | None:
        """The moment of this kind in the life of a request, if it was in this step."""
        life = self._view.life(request_id)
        return next((m for m in reversed(life) if (m.happened, m.step) == (happened, step)), None)

    def _leaving(self, name: str) -> Note:
        life = self._view.life(name)
        preempted = next(one for one in reversed(life) if one.happened is Happened.PREEMPTED)
        cause, step = preempted.cause, preempted.step
        if swapped := self.moment(name, Happened.SWAPPED, step):
            where = f"{blocks(swapped.amount)} to the host"
            return Note(Kind.SWAPPED, f"{name} is swapped out for {cause}: {where}")
        refused = self.moment(name, Happened.DEMOTED, step)
        why = f", and not swapped out: {refused.cause}" if refused else ""
        return Note(Kind.PREEMPTED, f"{name} is preempted for {cause}{why}")

    def _returning(self, group: Group, step: int) -> Note:
        returned = self.moment(group[0].request, Happened.RETURNED, step)
        moved = returned.amount if returned else 0
        copied = f"{blocks(moved)} back on the device" if moved else "the cache still has it all"
        each = f" with {len(group)} sequences" if len(group) > 1 else ""
        return Note(Kind.RETURNED, f"{group[0].request} returns from the host{each}: {copied}")

    def _joining(self, one: Arrival, filling: dict[int, str], step: int) -> Note:
        new, name = one.new, one.request
        known, hit = len(new.tokens), new.computed
        does = f"{name} {'resumes' if new.resumed else 'joins'}"
        if children := self._view.children(name):
            does += f", for {plural(len(children), 'sequence')}"
        if not hit:
            return Note(one.kind, f"{does}: {tokens(known)} to compute")
        found = new.blocks[: hit // self._rules.block_size]
        computing = list(dict.fromkeys(filling[block] for block in found if block in filling))
        if computing:
            where = f"shared with {listed(computing)}, computed in this very step"
        else:
            where = "still in the cache" if new.resumed else "in the cache"
        if loaded := self.moment(name, Happened.LOADED, step):
            source = "loaded from host memory"
            where = source if loaded.amount == hit else f"{where}, {loaded.amount} of them {source}"
        return Note(one.kind, f"{does}: {hit} of its {tokens(known)} are {where}")

    def _forking(self, group: Group, plan: Plan) -> Note:
        first = group[0]
        again = " again" if first.kind is Kind.AGAIN else ""
        shared = tokens(min(one.new.computed for one in group))
        return Note(
            first.kind,
            f"{first.request} forks{again} into {1 + len(group)} sequences that share {shared}; "
            f"{copied(group, plan)}",
        )

    def _replacing(self, group: Group, plan: Plan) -> Note:
        """Beams that are replaced by copies of others."""
        origins: dict[int, list[str]] = {}
        for one in group:
            origins.setdefault(self._origin(one, group), []).append(f"/{one.child}")
        copies = [
            f"{listed(beams)} {'goes' if len(beams) == 1 else 'go'} on from /{origin}"
            for origin, beams in origins.items()
        ]
        return Note(
            Kind.REPLACED, f"{group[0].request}: {', '.join(copies)}; {copied(group, plan)}"
        )

    def _origin(self, one: Arrival, group: Group) -> int:
        """The beam with the same tokens, which kept its slot."""
        view, known = self._view, one.new.tokens
        replaced = [other.child for other in group]
        return next(
            child
            for child in view.children(one.request)
            if child not in replaced
            and np.array_equal(view.child_tokens(one.request, child)[: len(known)], known)
        )

    # -- why admission is blocked -------------------------------------------

    def blocked(self, gate: Gate, left: int) -> str:
        """The reason; `left` tokens of the step's budget are unused."""
        rules, name = self._rules, gate.request_id
        head = f"{name} is next (it waited longest)" if gate.aged else f"{name} is next"
        match gate.reason:
            case "budget" if left > 0:
                return f"{head}, but too large for the {tokens(left)} left in this step"
            case "budget":
                return f"{head}, but the step's {rules.budget} tokens are spent"
            case "seqs" if self._view.children(name):
                return f"{head}, but {plural(gate.short, 'slot')} short for all its sequences"
            case "seqs":
                return f"{head}, but all {rules.slots} slots are taken"
            case "blocks":
                return f"{head}, but {blocks(gate.short)} short"
            case reason:
                return f"{head}, but {CLOSED.get(reason, f'it waits for {reason}')}"


def varies(gate: Gate, left: int) -> bool:
    """May the number in the reason differ from step to step?"""
    return gate.reason == "blocks" or (gate.reason == "budget" and left > 0)


def copied(group: Group, plan: Plan) -> str:
    """How many blocks are copied for a group."""
    own = {block for one in group for block in one.new.blocks}
    count = sum(target in own for _, target in plan.copies)
    return f"{blocks(count)} copied" if count else "no block is copied"


def ending(end: Ended, yielded: int) -> Note:
    """The end of a request, or of one sequence of it."""
    name = spoken(end.request_id, end.child)
    if not end.choices:
        return Note(Kind.LAST, f"{name} ends ({end.finish.value}) after {tokens(yielded)}")
    best = [f"{tokens(len(one.tokens))} (score {one.score:.2f})" for one in end.choices]
    which = "the best" if len(best) == 1 else f"the {len(best)} best"
    return Note(Kind.LAST, f"{name} ends ({end.finish.value}); {which}: {listed(best)}")


DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s)")
LONGEST_ID = 64
ABSENT = object()


class ScriptError(PacelineError, ValueError):
    """A workload that cannot be played, and the location of the error in it."""

    def __init__(self, location: str, complaint: str) -> None:
        super().__init__(f"{location}: {complaint}")


def shown(value: Any) -> str:
    """A value in an error message. Python refuses to print very long numbers."""
    try:
        return repr(value)
    except ValueError:
        return "a number of thousands of digits"


def whole(value: Any) -> bool:
    """Is it a whole number? (In Python, True is an int.)"""
    return isinstance(value, int) and not isinstance(value, bool)


class Fields:
    """One mapping of a workload. `finish` refuses fields that were not read."""

    def __init__(self, content: Any, location: str, root: bool = False) -> None:
        self.location = location
        self._root = root
        if not isinstance(content, dict):
            raise ScriptError(location, f"must be a mapping of fields, not {kind_of(content)}")
        self._content = cast(dict[Any, Any], content)
        self._known: list[str] = []

    def location_of(self, name: str) -> str:
        return f"{self.location}: {name}" if self._root else f"{self.location}.{name}"

    def _take(self, name: str, default: Any) -> Any:
        """The value; a field whose default is None is required."""
        self._known.append(name)
        value = self._content.get(name)
        if value is None:
            value = default
        if value is None:
            raise ScriptError(self.location, f"needs the field {name}")
        return value

    def _complain(self, name: str, kind: str, value: Any) -> ScriptError:
        return ScriptError(self.location_of(name), f"must be {kind}, not {shown(value)}")

    def finish(self) -> None:
        """Refuse unknown fields."""
        for name in self._content:
            if name not in self._known:
                hint = nearest(str(name), self._known)
                raise ScriptError(self.location, f"has an unknown field {name!r}{hint}")

    def refuse(self, names: tuple[str, ...], complaint: str) -> None:
        """Refuse fields that have no meaning with the others."""
        for name in names:
            if self._content.get(name) is not None:
                raise ScriptError(self.location_of(name), complaint)
            self._known.append(name)

    # -- one method per type ------------------------------------------------

    def text(self, name: str, default: str | None) -> str:
        value = self._take(name, default)
        if not isinstance(value, str) or not value.isprintable() or (default is None and not value):
            raise self._complain(name, "a line of text", value)
        return value

    def identity(self, name: str) -> str:
        """An id may be written as a number."""
        value = self._take(name, None)
        text = str(value) if whole(value) and abs(value) < 10**LONGEST_ID else value
        if not isinstance(text, str) or not text.isprintable() or not 0 < len(text) <= LONGEST_ID:
            raise self._complain(name, f"a name of 1 to {LONGEST_ID} letters", value)
        return text

    def whole(self, name: str, default: int | None, low: int, high: int) -> int:
        """A whole number from `low` to `high`; the default may lie outside."""
        value = self._take(name, default)
        if self._content.get(name) is None:
            return value
        if not whole(value):
            raise self._complain(name, "a whole number", value)
        if not low <= value <= high:
            limit = f"at least {low}" if value < low else f"at most {high:,}"
            raise self._complain(name, limit, value)
        return value

    def number(self, name: str, default: float, low: float, high: float) -> float:
        value = self._take(name, default)
        if not (whole(value) or isinstance(value, float)) or not low <= value <= high:
            raise self._complain(name, f"a number from {low:g} to {high:g}", value)
        return float(value)

    def one_of(self, name: str, default: Any, choices: tuple[Any, ...], kind: str) -> Any:
        """One of a few values, of the same type: 0 is not False."""
        value = self._take(name, default)
        if not any(value is one or (value == one and isinstance(one, str)) for one in choices):
            raise self._complain(name, kind, value)
        return value

    def wholes(self, name: str, low: int, high: int) -> list[int]:
        """A whole number or a list of them; empty if absent."""
        value = self._take(name, [])
        if not isinstance(value, list):
            return [self.whole(name, None, low, high)]
        found = cast(list[Any], value)
        if not all(whole(one) and low <= one <= high for one in found):
            raise self._complain(name, f"a list of whole numbers from {low} on", found)
        return found

    def seconds(self, name: str) -> float:
        """A time span: seconds as a number, or a text like "80ms"; infinite if absent."""
        value = self._take(name, inf)
        span: Any = duration(value) if isinstance(value, str) else value
        if not (whole(span) or isinstance(span, float)) or not span > 0:
            raise self._complain(name, "a time like 0.08 (seconds) or '80ms'", value)
        try:
            return float(span)
        except OverflowError:
            raise self._complain(name, "a time that fits a float", value) from None

    def arrival(self, name: str, last: int) -> tuple[int, float]:
        """The step and the time in seconds of an arrival; only one of them is given."""
        value = self._take(name, 1)
        if whole(value) and value >= 1:
            return self.whole(name, 1, 1, last), 0.0
        time = duration(value) if isinstance(value, str) else None
        if time is None or time == inf:
            raise self._complain(name, "a step from 1 on, or a time like '120ms'", value)
        return 1, time

    def mapping(self, name: str) -> Mapping[str, Any]:
        """A mapping with any names; empty if absent."""
        value = self._take(name, {})
        if not isinstance(value, dict):
            raise self._complain(name, "a mapping", value)
        found = cast(dict[Any, Any], value)
        if unknown := [key for key in found if not isinstance(key, str)]:
            raise ScriptError(self.location_of(name), f"has an unknown field {unknown[0]!r}")
        return found

    def nested(self, name: str) -> "Fields | None":
        """The fields of a nested mapping; None if absent."""
        value = self._take(name, ABSENT)
        return None if value is ABSENT else Fields(value, self.location_of(name))

    def sequence(self, name: str) -> list[Any]:
        value = self._take(name, [])
        if not isinstance(value, list):
            raise self._complain(name, "a list", value)
        return cast(list[Any], value)

    def items(self, name: str) -> list[tuple[str, Any]]:
        """The entries of a list, each with its location."""
        self._take(name, None)
        location = self.location_of(name)
        return [(f"{location}[{index}]", one) for index, one in enumerate(self.sequence(name))]


def duration(text: str) -> float | None:
    """Seconds of a text like "80ms" or "1.5s"."""
    found = DURATION.fullmatch(text.strip())
    if found is None:
        return None
    return float(found[1]) * (0.001 if found[2] == "ms" else 1.0)


def kind_of(value: Any) -> str:
    if value is None:
        return "nothing"
    return "a list" if isinstance(value, list) else shown(value)
