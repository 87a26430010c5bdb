"""Long work on threads, and interrupts that wait for the end of a turn."""

import asyncio
import threading
from pathlib import Path
from signal import SIGINT, default_int_handler, getsignal, raise_signal, signal
from threading import Thread

import pytest

from paceline.engine.long_work import LongWork, interrupts_deferred

pytestmark = pytest.mark.usefixtures("interruptible")


def test_it_runs_on_a_thread_and_returns_or_raises() -> None:
    async def use() -> None:
        work, here = LongWork(), threading.get_ident()
        assert await work.run(threading.get_ident) != here
        assert await work.run(int, "ff", base=16) == 255
        with pytest.raises(ValueError, match="invalid literal"):
            await work.run(int, "x")

    asyncio.run(use())


def resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20


def grown() -> float:
    """Make and free many blocks of the C heap, with one at its end that stays."""
    before = resident_mb()
    blocks = [bytes(2000) for _ in range(40_000)]
    held.append(blocks[-1])
    return resident_mb() - before


held: list[bytes] = []


def test_freed_memory_returns_to_the_system() -> None:
    async def use() -> None:
        work = LongWork()
        before = resident_mb()
        assert await work.run(grown) > 60
        async with asyncio.timeout(30):
            while resident_mb() > before + 20:
                await asyncio.sleep(0.01)

    asyncio.run(use())


def test_an_interrupt_waits_for_the_end() -> None:
    done: list[str] = []
    with pytest.raises(KeyboardInterrupt), interrupts_deferred():  # noqa: PT012
        raise_signal(SIGINT)
        done.append("the rest")
    assert done == ["the rest"]
    assert getsignal(SIGINT) is default_int_handler


def test_a_second_one_does_not_wait() -> None:
    done: list[str] = []
    with pytest.raises(KeyboardInterrupt), interrupts_deferred():  # noqa: PT012
        raise_signal(SIGINT)
        done.append("some")
        raise_signal(SIGINT)
        done.append("more")
    assert done == ["some"]
    assert getsignal(SIGINT) is default_int_handler


def test_without_an_interrupt_nothing_happens() -> None:
    with interrupts_deferred():
        pass
    with pytest.raises(ValueError, match="mine"), interrupts_deferred():
        raise ValueError("mine")
    assert getsignal(SIGINT) is default_int_handler


def test_who_handles_interrupts_hears_of_it_afterwards() -> None:
    heard: list[int] = []
    signal(SIGINT, lambda number, _: heard.append(number))
    with interrupts_deferred():
        raise_signal(SIGINT)
        assert heard == []
    assert heard == [SIGINT]


def test_other_threads_have_nothing_to_hold_back() -> None:
    done: list[bool] = []

    def run() -> None:
        with interrupts_deferred():
            done.append(getsignal(SIGINT) is default_int_handler)

    thread = Thread(target=run)
    thread.start()
    thread.join()
    assert done == [True]


def test_in_a_loop_it_waits_for_the_next_place_that_handles_it() -> None:
    heard: list[int] = []
    signal(SIGINT, lambda number, _: heard.append(number))
    with interrupts_deferred() as handle_interrupt:
        for turn in range(3):
            raise_signal(SIGINT)
            assert len(heard) == turn
            handle_interrupt()
            assert len(heard) == turn + 1
    assert len(heard) == 3
    signal(SIGINT, default_int_handler)
    done: list[str] = []
    with pytest.raises(KeyboardInterrupt), interrupts_deferred() as handle_interrupt:  # noqa: PT012
        raise_signal(SIGINT)
        done.append("the turn")
        handle_interrupt()
        done.append("another turn")
    assert done == ["the turn"]
    assert getsignal(SIGINT) is default_int_handler
