"""A run with a connector replays from its recorded answers, without the connector."""

from collections import Counter
from pathlib import Path

from paceline.core.settings.config import Config
from paceline.core.settings.features import RecordConfig
from paceline.sched.replay.reader import files_of_run
from paceline.sched.replay.recorded_scheduler import RecordedScheduler
from paceline.sched.replay.replayer import Replay
from paceline.testing.oracle import OracleRunner
from tests.property.erratic_connector import ErraticConnector
from tests.sched.support import SMALL, ask

SHARED = range(100, 124)


def run(path: Path, divided: bool = False) -> RecordedScheduler:
    """Requests that share prefixes, on a device that keeps few of them."""
    config = RecordConfig(str(path))
    settings = SMALL | {"num_blocks": 10, "max_model_len": 40, "kv_load_timeout_s": 50.0}
    scheduler = RecordedScheduler(Config.of(**settings), config)
    runner, seen = OracleRunner(10, 4, 50), Counter[str]()
    connector = ErraticConnector(runner, 3, seen)
    scheduler.connect(connector)
    for number in range(40):
        prompt = [*list(SHARED)[number % 3 :], number]
        scheduler.submit(ask(f"r{number}", prompt, 6), float(number))
    for now in range(1000):
        plan = scheduler.plan(float(now))
        scheduler.commit(plan, runner.run(plan), float(now))
        if scheduler.idle:
            break
        if divided and any(not one.is_store for one in connector.underway):
            scheduler.recording.next_file()
            divided = False
    assert scheduler.idle
    assert seen["loads"]
    scheduler.close()
    return scheduler


def test_plans_with_loads_replay(tmp_path: Path) -> None:
    done = run(tmp_path / "run")
    replay = Replay(tmp_path / "run")
    summary = replay.run()
    assert replay.divergence is None
    assert summary.verified == summary.steps == done.stats.steps
    assert replay.scheduler.stats == done.stats
    assert done.stats.external_hits


def test_a_file_that_begins_while_blocks_are_loaded_replays(tmp_path: Path) -> None:
    done = run(tmp_path / "run", divided=True)
    newest = Replay(tmp_path / "run")
    newest.run()
    assert newest.divergence is None
    assert newest.steps_before > 0
    assert Replay(*files_of_run(tmp_path / "run")).run().verified == done.stats.steps
