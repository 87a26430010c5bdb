"""Questions about the scheduler, and their answers as plain data."""

import json
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import asdict
from threading import Lock
from typing import Any, cast

from paceline.core.adapter import LoRARequest, adapter_name
from paceline.core.errors import RequestError
from paceline.core.system.start import START
from paceline.engine.loop.adapters import AdapterRequests
from paceline.engine.loop.messages import Question, Verb
from paceline.engine.loop.ports import PageFeed
from paceline.sched.scheduler import Scheduler


def settle(answer: Future[Any], value: Any, error: BaseException | None) -> None:
    """Give a future its value or its error, unless it has one or was cancelled."""
    with suppress(InvalidStateError):
        if error is None:
            answer.set_result(value)
        else:
            answer.set_exception(error)


def when_done(found: Any, use: Callable[[Any, BaseException | None], None]) -> None:
    """Call `use` with a value, or with what a future gets, at once or on another thread."""
    if not isinstance(found, Future):
        use(found, None)
        return

    def ended(future: Future[Any]) -> None:
        error = future.exception()
        use(None if error else future.result(), error)

    cast("Future[Any]", found).add_done_callback(ended)


def when_all_done(futures: Sequence[Future[Any]], use: Callable[[], None]) -> None:
    """Call `use` once all of one or more futures are done, at once or on another thread."""
    left, counting = len(futures), Lock()

    def one_done(_: Future[Any]) -> None:
        nonlocal left
        with counting:
            left -= 1
            last = left == 0
        if last:
            use()

    for future in futures:
        future.add_done_callback(one_done)


ADAPTER_VERBS = ("adapters", "load_adapter", "unload_adapter")
LIVE_VERBS = ("frames", "life")
Answerer = Callable[[Scheduler, str, float], Any]


def answer(scheduler: Scheduler, question: Question, now: float) -> Any:
    """Answer a question. RequestError if it is unknown, or about an unknown request."""
    known = ANSWERERS.get(question.verb)
    if known is None:
        raise RequestError(f"unknown question {question.verb!r}")
    return known(scheduler, question.argument, now)


def answer_about(adapters: AdapterRequests | None, question: Question) -> Any:
    """Answer a question about adapters; the answer to `load_adapter` is a future."""
    if question.verb == "adapters":
        return [] if adapters is None else adapters.listed()
    if adapters is None:
        raise RequestError("this engine serves no adapters; start it with enable_lora")
    if question.verb == "unload_adapter":
        adapters.unload(question.argument)
        return None
    name, path, in_place = json.loads(question.argument)
    return adapters.load(LoRARequest(name, 1, path), in_place)


def answer_live(feed: PageFeed | None, question: Question) -> Any:
    """Answer a question of a live page."""
    if feed is None:
        raise RequestError("this engine feeds no live pages")
    return feed.answer(question)


def gauges(scheduler: Scheduler, _argument: str, _now: float) -> dict[str, Any]:
    """The present state, and totals since the start."""
    caching = scheduler.config.cache.enable_prefix_caching
    now = asdict(scheduler.view.gauges())
    found = {**scheduler.stats.to_dict(), **now, "enable_prefix_caching": caching}
    of_process = {"pid": os.getpid(), "start": dict(START.seconds)}
    return found | of_process | {"lora": lora_labels(scheduler)}


def lora_labels(scheduler: Scheduler) -> dict[str, str]:
    """The adapters in use, as labels of vLLM's metric; none without a limit on their number."""
    if not (most := scheduler.config.step.max_loras):
        return {}
    running, waiting = (",".join(map(adapter_name, some)) for some in scheduler.view.adapters())
    names = ("max_lora", "running_lora_adapters", "waiting_lora_adapters")
    return dict(zip(names, (str(most), running, waiting), strict=True))


ANSWERERS: dict[Verb, Answerer] = {
    "explain": lambda scheduler, request_id, _: scheduler.explain(request_id),
    "snapshot": lambda scheduler, _, __: scheduler.snapshot(),
    "gauges": gauges,
    "drain": lambda scheduler, _, __: scheduler.drain(),
    "reset_prefix_cache": lambda scheduler, running, now: scheduler.reset_prefix_cache(
        reset_running_requests=running == "running", now=now
    ),
}
