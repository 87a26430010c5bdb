"""Answers from the scheduler, as plain data."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from paceline.core.errors import RequestError
from paceline.engine.core.messages import Question, Verb
from paceline.sched.scheduler import Scheduler

Answerer = Callable[[Scheduler, str, float], Any]


def answer(scheduler: Scheduler, question: Question, now: float) -> Any:
    """RequestError if it is about something that is not here."""
    known = ANSWERERS.get(question.verb)
    if known is None:
        raise RequestError(f"no question {question.verb!r}")
    return known(scheduler, question.argument, now)


def gauges(scheduler: Scheduler, _argument: str, _now: float) -> dict[str, float]:
    """The present state, and totals since the start."""
    return {**scheduler.stats.to_dict(), **asdict(scheduler.view.gauges())}


def pause(scheduler: Scheduler, mode: str, _now: float) -> None:
    if mode not in ("new", "all"):
        raise RequestError(f"a pause is 'new' or 'all', not {mode!r}")
    scheduler.pause(mode)


ANSWERERS: dict[Verb, Answerer] = {
    "explain": lambda scheduler, request_id, _: scheduler.explain(request_id),
    "snapshot": lambda scheduler, _, __: scheduler.snapshot(),
    "gauges": gauges,
    "pause": pause,
    "resume": lambda scheduler, _, __: scheduler.resume(),
    "drain": lambda scheduler, _, __: scheduler.drain(),
    "reset_prefix_cache": lambda scheduler, running, now: scheduler.reset_prefix_cache(
        reset_running_requests=running == "running", now=now
    ),
}
