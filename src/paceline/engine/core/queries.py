"""Answers questions about the scheduler with plain data."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from paceline.core.errors import RequestError
from paceline.engine.core.messages import Question, Verb
from paceline.sched.scheduler import Scheduler

Answerer = Callable[[Scheduler, str, float], Any]


def answer(scheduler: Scheduler, question: Question, now: float) -> Any:
    """Answer a question. RequestError if it is unknown, or about an unknown request."""
    known = ANSWERERS.get(question.verb)
    if known is None:
        raise RequestError(f"unknown question {question.verb!r}")
    return known(scheduler, question.argument, now)


def gauges(scheduler: Scheduler, _argument: str, _now: float) -> dict[str, float]:
    """The present state, and totals since the start."""
    caching = scheduler.config.cache.enable_prefix_caching
    now = asdict(scheduler.view.gauges())
    return {**scheduler.stats.to_dict(), **now, "enable_prefix_caching": caching}


def pause(scheduler: Scheduler, mode: str, _now: float) -> None:
    if mode not in ("new", "all"):
        raise RequestError(f"mode is {mode!r}; it must be 'new' or 'all'")
    scheduler.pause(mode)


ANSWERERS: dict[Verb, Answerer] = {
    "explain": lambda scheduler, request_id, _: scheduler.explain(request_id),
    "snapshot": lambda scheduler, _, __: scheduler.snapshot(),
    "gauges": gauges,
    "pause": pause,
    "paused": lambda scheduler, _, __: scheduler.paused,
    "resume": lambda scheduler, _, __: scheduler.resume(),
    "drain": lambda scheduler, _, __: scheduler.drain(),
    "reset_prefix_cache": lambda scheduler, running, now: scheduler.reset_prefix_cache(
        reset_running_requests=running == "running", now=now
    ),
}
