"""The life of a request as a page draws it."""

from collections.abc import Sequence as Several
from itertools import pairwise
from typing import Any

import msgspec

from paceline.core.errors import RequestError
from paceline.core.events import Happened, Moment
from paceline.core.request import Sequence
from paceline.engine.live.frames import LifeMoment, LifePhase, RequestLife
from paceline.engine.trace.step_trace import PHASES
from paceline.sched.explain import sentences
from paceline.sched.scheduler import Scheduler

HEAD_TOKENS = 256  # of a prompt, for servers that may show prompts
HEAD = "head"  # the key of these
MOST_MOMENTS = 512
SHOWN_S = 0.001  # a shorter time before the engine is no phase


def life_of(scheduler: Scheduler, request_id: str, now: float) -> dict[str, Any]:
    """The fields of a `RequestLife` of a live or remembered request, and the first tokens of its
    prompt under `HEAD`. RequestError if it is not remembered."""
    text = scheduler.explain(request_id)
    sequence = scheduler.view.sequence(request_id)
    if sequence is None:
        raise RequestError(f"no request {request_id!r} is known")
    found: dict[str, Any] = msgspec.to_builtins(life(scheduler, sequence, text, now))
    return found | {HEAD: sequence.request.prompt[:HEAD_TOKENS].tolist()}


def life(scheduler: Scheduler, sequence: Sequence, text: str, now: float) -> RequestLife:
    request, table, slot = sequence.request, scheduler.view.table, sequence.slot
    known, computed = len(sequence.tokens), 0
    if slot >= 0:
        known, computed = int(table.known[slot]), int(table.computed[slot])
    elif sequence.finish is not None:
        known = sequence.life[-1].amount
        computed = max(known - 1, 0) if sequence.started else 0
    return RequestLife(
        request_id=sequence.id,
        engine=0,
        state=sequence.state,
        arrival=sequence.arrival,
        now=now,
        prompt=len(request.prompt),
        known=known,
        computed=computed,
        cached=sequence.cached,
        limit=sequence.limit,
        preemptions=sequence.preemptions,
        tenant=request.tenant,
        priority=request.priority,
        phases=(*way_here(sequence), *phases_of(sequence.life)),
        moments=tuple(moment_of(one) for one in sequence.life[-MOST_MOMENTS:]),
        sentences=tuple(text.splitlines()),
    )


def way_here(sequence: Sequence) -> list[LifePhase]:
    """The time before the engine took a request up: a step was in progress, or another engine had
    the request."""
    begin, end = sequence.arrival, sequence.queued_at
    return [LifePhase("before the engine", begin, end, 0)] if end - begin >= SHOWN_S else []


def phases_of(moments: Several[Moment]) -> list[LifePhase]:
    """What a request did, one thing after another."""
    turns = [one for one in moments if one.happened in PHASES or one.happened is Happened.FINISHED]
    ends: list[float | None] = [later.time for _, later in pairwise(turns)]
    if turns and turns[-1].happened is not Happened.FINISHED:
        ends.append(None)
    found = zip(turns, ends, strict=False)
    phases = [
        LifePhase(PHASES[one.happened], one.time, end, one.step, one.cause) for one, end in found
    ]
    return phases[-MOST_MOMENTS:]


def moment_of(one: Moment) -> LifeMoment:
    spoken = sentences.sentence(one)
    return LifeMoment(one.happened.value, one.time, one.step, one.amount, one.cause, spoken)
