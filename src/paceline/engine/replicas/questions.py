"""Questions to several engines, whose answers become one."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from threading import Lock
from typing import Any

from paceline.engine.arguments import undoing
from paceline.engine.live.frames import FrameQuestion
from paceline.engine.loop.figures import NO_REQUESTS, first_figures
from paceline.engine.loop.messages import Capacity, EngineFailed, Question, Verb
from paceline.engine.loop.questions import settle, when_all_done
from paceline.engine.transport.restart import ADAPTERS, MODEL, RestartingCore


def explanations(found: dict[int, str]) -> str:
    """What engines know of a request; several do if its id was used again."""
    return "\n".join(f"engine {engine}: {text}" for engine, text in found.items())


def latest_life(found: dict[int, dict[str, Any]]) -> dict[str, Any]:
    """The life of a request in the engine that got it last."""
    engine = max(found, key=lambda one: found[one]["arrival"])
    return found[engine] | {"engine": engine}


# How the answers of the engines become one; by default all of them are the same.
JOINS: dict[Verb, Callable[[dict[int, Any]], Any]] = {
    "explain": explanations,
    "life": latest_life,
    "paused": lambda found: max(found.values()),
    "reset_prefix_cache": lambda found: all(found.values()),
}
ABOUT_REQUESTS = ("explain", "life")  # which one of the engines knows
# What an engine that is restarted is asked again.
LASTING = ("pause", "resume", "drain", *ADAPTERS, *MODEL)


class EngineQuestions:
    """An engine that is not there is asked after its restart what lasts, and nothing else.

    The figures of an engine are the latest that it answered.
    """

    def __init__(self, cores: Sequence[RestartingCore], capacities: Sequence[Capacity]) -> None:
        self._cores = cores
        self._figures = [first_figures(one) | {"crashes": 0} for one in capacities]
        self._lock = Lock()  # while a question is sent to all engines

    def crashed(self, engine: int) -> None:
        """Count the death of an engine."""
        self._figures[engine]["crashes"] += 1

    def ask(self, question: Question) -> Future[Any]:
        """Ask the engine that the question names, or all engines."""
        match question.verb:
            case "gauges":
                return self._gauges(int(question.argument or 0), question)
            case "snapshot":
                return self._cores[int(question.argument or 0)].ask(question)
            case "frames":
                engine = FrameQuestion.of(question.argument).engine_of(len(self._cores))
                return self._cores[engine].ask(question)
            case "load_adapter" | "unload_adapter":
                return self._change_adapters(question)
            case _:
                pass
        return self._ask_all(question)

    def _gauges(self, engine: int, question: Question) -> Future[Any]:
        """The figures of an engine; the latest ones without requests if it is not there."""
        answer: Future[Any] = Future()

        def answered(found: Future[Any]) -> None:
            if found.exception() is None:
                self._figures[engine] |= found.result()
            else:
                self._figures[engine] |= NO_REQUESTS
            settle(answer, dict(self._figures[engine]), None)

        self._asked(self._cores[engine], question).add_done_callback(answered)
        return answer

    def _ask_all(self, question: Question) -> Future[Any]:
        with self._lock:  # so that all engines have questions of several threads in one order
            asked = [self._asked(core, question) for core in self._cores]
        answer: Future[Any] = Future()
        when_all_done(asked, lambda: self._join(question, asked, answer))
        return answer

    def _change_adapters(self, question: Question) -> Future[Any]:
        """Load or unload an adapter in all engines, or in none if one of them refuses."""
        with self._lock:  # as in `_ask_all`
            before = [self._asked(core, Question("adapters")) for core in self._cores]
            asked = [self._asked(core, question) for core in self._cores]
        answer: Future[Any] = Future()

        def answered() -> None:
            errors = [one.exception() for one in asked]
            refusals = [one for one in errors if one and not isinstance(one, EngineFailed)]
            changed = [engine for engine, error in enumerate(errors) if error is None]
            if not (refusals and changed):
                self._join(question, asked, answer)
                return
            undone: list[Future[Any]] = []
            for engine in changed:
                listed: Any = () if before[engine].exception() else before[engine].result()
                undo = undoing(question, listed)
                self._cores[engine].keep(undo)  # it may be gone before it has done it
                undone.append(self._asked(self._cores[engine], undo))
            when_all_done(undone, lambda: settle(answer, None, refusals[0]))

        when_all_done([*before, *asked], answered)
        return answer

    def _asked(self, core: RestartingCore, question: Question) -> Future[Any]:
        """The answer of an engine, which fails if the engine is not there."""
        try:
            if question.verb in ABOUT_REQUESTS and (trouble := core.healthy()):
                raise EngineFailed(trouble)  # others may know the request, and must not wait
            return core.ask(question)
        except EngineFailed as error:
            absent: Future[Any] = Future()
            absent.set_exception(error)
            return absent

    def _join(self, question: Question, asked: Sequence[Future[Any]], answer: Future[Any]) -> None:
        """Answer with what the engines answered, of which some may not be there.

        One refusal is the answer of all, unless another engine can explain the request.
        """
        errors = [one.exception() for one in asked]
        found = {engine: asked[engine].result() for engine, one in enumerate(errors) if not one}
        refusals = [one for one in errors if one and not isinstance(one, EngineFailed)]
        if not found or (refusals and question.verb not in ABOUT_REQUESTS):
            settle(answer, None, (refusals or errors)[0])
            return
        if question.verb in LASTING:
            for engine, core in enumerate(self._cores):
                core.keep(question, ask=engine not in found)
        join = JOINS.get(question.verb) if len(self._cores) > 1 else None
        settle(answer, join(found) if join else next(iter(found.values())), None)
