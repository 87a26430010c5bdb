"""Writes what a front end does into a timeline: prompts that it reads, tokens that it delivers."""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from threading import current_thread
from time import monotonic
from typing import Any

from paceline.core.request import Finish
from paceline.engine.api import GenerationRequest, TokenizedPrompt
from paceline.engine.frontend.frontend import Frontend
from paceline.engine.long_work import THREAD_NAME
from paceline.engine.loop.messages import Abort, Delivery
from paceline.engine.trace.trace_file import TraceFile, TraceTarget

FRONT_END = "front end"  # the track of the thread that delivers
FIRST_TRACK = 11  # an engine in the same process has those before it

MakeFrontend = Callable[..., Frontend]  # takes the arguments of `Frontend`


class TracedFrontend(Frontend):
    """A front end that writes a slice for each prompt or batch of prompts, and for each delivery.

    Long prompts are read on threads, which have tracks of their own:

        front end   | tokenize | deliver |     | deliver |
        long-work_0      | template | tokenize   |
    """

    trace: TraceFile

    def text_of(self, generation: GenerationRequest) -> str | None:
        if generation.messages is None:
            return super().text_of(generation)
        with self._slice("template") as values:
            text = super().text_of(generation)
            values |= {"messages": len(generation.messages), "characters": len(text or "")}
            return text

    def ids_of(self, text: str, framed: bool, is_whole: bool = True) -> list[int]:
        with self._slice("tokenize") as values:
            ids = super().ids_of(text, framed, is_whole)
            values |= {"characters": len(text), "tokens": len(ids)}
            return ids

    def ids_of_all(self, texts: Sequence[str], framed: bool) -> list[list[int]]:
        with self._slice("tokenize") as values:
            found = super().ids_of_all(texts, framed)
            values |= {"texts": len(texts), "characters": sum(map(len, texts))}
            values["tokens"] = sum(map(len, found))
            return found

    def whole(
        self,
        generation: GenerationRequest,
        text: str | None,
        ids: Sequence[int] | None,
        images: Sequence[Any],
    ) -> TokenizedPrompt:
        if not images:
            return super().whole(generation, text, ids, images)
        with self._slice("read images") as values:
            values["images"] = len(images)
            return super().whole(generation, text, ids, images)

    def deliver(self, delivery: Delivery) -> list[Abort]:
        with self._slice("deliver") as values:
            late_s = monotonic() - delivery.time
            values |= {
                "engine": delivery.engine,
                "sequences": len(delivery.handle),
                "tokens": int(delivery.count.sum()),
                "ended": len(delivery.ended),
                "late ms": round(1e3 * late_s, 3),
            }
            return super().deliver(delivery)

    def end_all(self, finish: Finish, message: str = "") -> list[str]:
        """Also called when the engine is closed."""
        names = super().end_all(finish, message)
        self.trace.flush()
        return names

    @contextmanager
    def _slice(self, name: str) -> Generator[dict[str, Any]]:
        thread = current_thread().name
        track = thread if thread.startswith(THREAD_NAME) else FRONT_END
        values: dict[str, Any] = {}
        begin = monotonic()
        try:
            yield values
        finally:
            self.trace.slice(track, name, begin, monotonic(), values)


def front_end(target: TraceTarget) -> MakeFrontend:
    """The class of front ends, or one that writes a timeline."""
    if (file := target.opened(FIRST_TRACK)) is None:
        return Frontend

    def traced(*given: Any, **named: Any) -> Frontend:
        found = TracedFrontend(*given, **named)
        found.trace = file
        return found

    return traced
