"""Silence of a step loop is a stall while requests are ready to run."""

import asyncio
from threading import Event

import numpy as np
import pytest

from paceline.core.errors import RequestError
from paceline.core.plan import Ended, StepResult
from paceline.core.request import Finish, Request
from paceline.engine.loop.messages import Delivery, Question, Refused
from paceline.engine.loop.turn_times import StallDetector
from paceline.engine.streaming import StreamingEngine
from tests.engine.support import OraclePort, ask, components


def request(name: str) -> Request:
    return Request(id=name, prompt=[5, 6], handle=ord(name))  # pyright: ignore[reportArgumentType]


class Watched:
    """A detector whose clock is set by hand."""

    def __init__(self, stall_s: float = 5.0) -> None:
        self.now = 100.0
        self.detector = StallDetector(stall_s, lambda: self.now)

    def stalls_after(self, seconds: float) -> bool:
        self.now += seconds
        return self.detector.stalled() is not None

    def delivered(
        self, *ended: Ended, refused: tuple[Refused, ...] = (), tokens_for: str = ""
    ) -> None:
        handles = np.array([*map(ord, tokens_for)], np.int64)
        rows = np.ones(len(handles), np.int32)
        ids = np.zeros((len(handles), 1), np.int32)
        self.detector.delivered(Delivery(0.0, handles, ids, rows, ended=ended, refused=refused))


def test_silence_is_a_stall_while_requests_wait() -> None:
    watched = Watched()
    assert not watched.stalls_after(1000.0)  # no request is here
    watched.detector.submitted("a", ord("a"))
    assert not watched.stalls_after(5.0)
    watched.detector.submitted("b", ord("b"))
    watched.now += 1.0
    assert watched.detector.stalled() == "no step has ended for 6 s, and requests are waiting"
    watched.delivered()
    assert not watched.stalls_after(5.0)
    assert watched.stalls_after(1.0)


def test_a_request_counts_until_the_whole_of_it_has_ended() -> None:
    watched = Watched()
    for name in "abc":
        watched.detector.submitted(name, ord(name))
    watched.delivered(Ended("a", Finish.STOP, child=0), Ended("b", Finish.STOP))
    watched.detector.ended("c")
    assert watched.stalls_after(6.0)  # the other children of "a"
    watched.delivered(refused=(Refused("a", RequestError("why")),))
    assert not watched.stalls_after(60.0)


def test_a_pause_is_no_stall() -> None:
    watched = Watched()
    watched.detector.submitted("a", ord("a"))
    assert watched.stalls_after(6.0)
    watched.detector.asked(Question("pause", "all"))
    assert not watched.stalls_after(60.0)
    watched.detector.asked(Question("resume"))
    assert not watched.stalls_after(5.0)
    assert watched.stalls_after(1.0)


def test_other_questions_are_no_progress() -> None:
    watched = Watched()
    watched.detector.submitted("a", ord("a"))
    watched.now += 6.0
    watched.detector.asked(Question("gauges"))
    assert watched.stalls_after(0.0)


def test_parked_requests_explain_the_silence() -> None:
    watched = Watched()
    watched.detector.submitted("a", ord("a"), "grammar")
    watched.detector.submitted("b", ord("b"))
    watched.detector.parked("b")
    watched.detector.parked("unknown")
    assert not watched.stalls_after(60.0)
    watched.detector.woken("a")
    assert not watched.stalls_after(5.0)
    assert watched.stalls_after(1.0)
    watched.delivered(Ended("a", Finish.STOP))
    assert not watched.stalls_after(60.0)
    watched.detector.submitted("c", ord("c"))
    assert not watched.stalls_after(5.0)
    assert watched.stalls_after(1.0)


def test_a_request_that_got_tokens_is_not_parked() -> None:
    """It ran already when the message came, which the core ignored."""
    watched = Watched()
    watched.detector.submitted("a", ord("a"))
    watched.detector.parked("a")
    watched.delivered(tokens_for="a")
    assert watched.stalls_after(6.0)


@pytest.mark.parametrize("step", [1, 3])
def test_a_thread_that_is_stuck_in_a_step_is_seen_from_outside(step: int) -> None:
    made, free = components(stall_s=0.1), Event()
    port = made.runner
    assert isinstance(port, OraclePort)
    wait = port.wait

    def waiting() -> StepResult:
        if port.launched[-1].step == step:
            free.wait()
        return wait()

    port.wait = waiting  # type: ignore[method-assign]

    async def run() -> None:
        async with StreamingEngine.of(made) as engine:
            stream = engine.generate(ask("hello", max_tokens=5, ignore_eos=True))
            while engine.healthy() is None:
                await asyncio.sleep(0.01)
            assert "no step has ended for" in (engine.healthy() or "")
            free.set()
            await stream.whole()
            assert engine.healthy() is None

    asyncio.run(asyncio.wait_for(run(), 50))
