"""What a rank reports when it cannot go on."""

from typing import Any

import pytest

from paceline.engine.transport.wire import Died
from paceline.runner.parallel.group import ExchangeFailed
from paceline.wiring.ranks import rank_main


class Recorder:
    """The end of a rank, in order."""

    def __init__(self) -> None:
        self.done: list[Any] = []

    def send(self, message: Any) -> None:
        self.done.append(message)

    def sleep(self, seconds: float) -> None:
        self.done.append(seconds)


def test_a_rank_leaves_time_to_find_the_one_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the first rank whose exchange fails would be reported as the reason."""
    recorder = Recorder()

    def run(*_: Any) -> None:
        raise ExchangeFailed("connection closed by peer")

    monkeypatch.setattr(rank_main, "bound_to_parent", lambda *_: (None, recorder))
    monkeypatch.setattr(rank_main, "sleep", recorder.sleep)
    monkeypatch.setattr(rank_main, "run", run)
    with pytest.raises(SystemExit, match="1"):
        rank_main.main("inproc://nowhere")
    reason = "ExchangeFailed: connection closed by peer"
    assert recorder.done == [rank_main.PATIENCE_S, Died(reason)]
