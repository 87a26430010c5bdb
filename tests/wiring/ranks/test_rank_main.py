"""What a rank does beside its steps, and what it reports when it cannot go on."""

from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.core.errors import RequestError
from paceline.engine.transport.wire import Died, NumberedAnswer
from paceline.runner.adapters.host import HostAdapters
from paceline.runner.models.model import Model
from paceline.runner.parallel.divide import Shard
from paceline.runner.parallel.group import ExchangeFailed
from paceline.runner.weights.dummy import Dummy
from paceline.wiring.ranks import rank_main
from paceline.wiring.ranks.rank_main import RankTasks
from paceline.wiring.ranks.rank_processes import KeepAdapter, NumberedTask, ReadAdapter
from tests.runner.adapters.support import write_adapter
from tests.runner.support import tiny


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


class Answers(SimpleQueue[NumberedAnswer]):
    def send(self, message: NumberedAnswer) -> None:
        self.put(message)


@pytest.fixture
def host() -> HostAdapters:
    return HostAdapters(Model.load(Dummy(tiny(), seed=3)).targets, 16)


def test_adapters_are_forgotten_that_rank_0_no_longer_holds(
    host: HostAdapters, tmp_path: Path
) -> None:
    folder, answers = str(write_adapter(tmp_path, tiny())), Answers()
    outbox: Any = answers
    tasks = RankTasks(SimpleNamespace(host_adapters=host), Shard(1, 2), outbox)
    for number, held in ((0, ()), (1, (0,)), (2, (1,))):
        tasks.begin(NumberedTask(7 + number, ReadAdapter(number, folder, held)))
        assert answers.get(timeout=60) == NumberedAnswer(7 + number, host.read(folder).version)
    tasks.keep(KeepAdapter("x", 1))
    assert host.weights("x").version == host.read(folder).version
    with pytest.raises(KeyError):
        tasks.keep(KeepAdapter("x", 0))


def test_a_task_that_fails_is_answered_with_the_reason(host: HostAdapters, tmp_path: Path) -> None:
    answers: Any = Answers()
    tasks = RankTasks(SimpleNamespace(host_adapters=host), Shard(1, 2), answers)
    tasks.begin(NumberedTask(5, ReadAdapter(0, str(tmp_path), ())))
    answer = answers.get(timeout=60)
    assert answer.number == 5
    assert isinstance(answer.fault.error(), RequestError)
    assert "is no adapter of PEFT" in answer.fault.message
