"""Interrupts that wait for the end of a turn, and those that do not."""

from signal import SIGINT, default_int_handler, getsignal, raise_signal, signal
from threading import Thread

import pytest

from paceline.engine.long_work import interrupts_deferred

pytestmark = pytest.mark.usefixtures("interruptible")


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
