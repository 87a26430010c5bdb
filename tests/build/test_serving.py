"""While a model is loaded a signal ends the program; before and after, it means what it did."""

import os
import signal
import threading

import pytest

from paceline.build.serving import ended_by_a_signal


def test_the_signal_means_afterwards_what_it_did() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as raised, ended_by_a_signal():
        os.kill(os.getpid(), signal.SIGTERM)
    assert raised.value.code == 0
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_thread_may_load_a_model_as_well() -> None:
    before, seen = signal.getsignal(signal.SIGTERM), list[object]()

    def load() -> None:
        with ended_by_a_signal():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=load)
    thread.start()
    thread.join()
    assert seen == [before]
