"""Describe what a plan changes: requests that join, leave, fork, return or have to wait."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

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
            place = "loaded from host memory"
            where = place if loaded.amount == hit else f"{where}, {loaded.amount} of them {place}"
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
