"""Engines are recorded if the settings say so; a recording never stops one."""

import asyncio
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paceline import LLM, AsyncLLM, ConfigError, SamplingParams
from paceline.cli.main import main
from paceline.core.settings.config import Config
from paceline.core.settings.features import RecordConfig
from paceline.engine.api import GenerationRequest
from paceline.sched.replay.reader import RecordingEnd
from paceline.sched.replay.recorded_scheduler import RecordedScheduler
from paceline.sched.replay.replayer import Replay, ReplaySummary
from paceline.sched.scheduler import Scheduler
from paceline.simulator.device.profile import Profile
from paceline.simulator.recorded import RecordedLoad
from paceline.simulator.server import ServerModel, SimulatedServer
from paceline.wiring.recording import begin_files, scheduler_of
from tests.golden.small_model import small_model

# A pool of 64 tokens for requests of up to 40: some are preempted.
TIGHT: dict[str, Any] = {
    "weights": "float32",
    "max_num_seqs": 4,
    "max_model_len": 40,
    "block_size": 4,
    "num_gpu_blocks_override": 16,
    "reserve_full_prompt": False,
    "depth": 2,
}
CONFIG = Config.of(num_blocks=8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(small_model(tmp_path_factory.mktemp("tiny")))


def prompts(count: int) -> list[GenerationRequest]:
    """Requests that differ in length, priority, number of choices and limits."""
    return [
        GenerationRequest(
            prompt_token_ids=[2 + (number * place) % 60 for place in range(1, 4 + number % 17)],
            request_id=f"r{number}",
            priority=number % 3,
            params=SamplingParams(
                n=1 + number % 2,
                temperature=1.0,
                seed=number,
                max_tokens=4 + number % 13,
                ignore_eos=number % 4 > 0,
                stop=["the"] if number % 5 == 0 else [],
            ),
        )
        for number in range(count)
    ]


def replayed(path: Path) -> ReplaySummary:
    replay = Replay(path)
    summary = replay.run()
    assert (replay.divergence, replay.reader.ending) == (None, RecordingEnd.CLOSED)
    assert summary.verified == summary.steps > 0
    return summary


def test_what_an_llm_recorded_replays_to_the_same_plans(folder: str, tmp_path: Path) -> None:
    path = tmp_path / "run"
    with LLM(folder, record=str(path), policy="priority", **TIGHT) as llm:
        first, *rest = prompts(30)
        llm.enqueue(first)
        llm.step()
        llm.abort("r0")
        assert len(llm.generate(rest, progress=False)) == len(rest)
    summary = replayed(path)
    assert summary.requests == 30
    assert summary.preemptions > 0
    assert summary.forks > 0
    check_simulation(path)


def check_simulation(path: Path) -> None:
    """A simulation of the recorded requests, each of several sequences alone, has their tokens."""
    recorded = RecordedLoad(path)
    load = recorded.workload()
    assert len(load.requests) == 45  # every other one has two sequences
    model = ServerModel(Profile.load("h200-qwen3-0.6b"), recorded.settings)
    log = SimulatedServer(model, load.requests, load.outputs).run().log
    ends = zip(load.requests, log.outcome, log.tokens.tolist(), strict=True)
    for request, outcome, tokens in ends:
        assert outcome == "length" or request.id == "r0"
        assert tokens == len(load.outputs[request.id]) or request.id == "r0"


def test_what_an_async_llm_recorded_replays_to_the_same_plans(folder: str, tmp_path: Path) -> None:
    path = tmp_path / "run"

    async def read(llm: AsyncLLM, wanted: GenerationRequest, number: int) -> None:
        async for _ in llm.generate(wanted):
            if number % 6 == 0:
                break  # it is aborted

    async def run() -> None:
        llm = AsyncLLM(folder, record=str(path), policy="priority", **TIGHT)
        async with llm, asyncio.TaskGroup() as group:
            for number, wanted in enumerate(prompts(30)):
                group.create_task(read(llm, wanted, number))

    asyncio.run(run())
    summary = replayed(path)
    assert summary.requests == 30
    assert summary.preemptions > 0


# -- files that cannot be written -------------------------------------------


def test_an_engine_that_is_not_recorded_has_a_plain_scheduler() -> None:
    assert type(scheduler_of(CONFIG, RecordConfig())) is Scheduler


def test_a_recording_that_cannot_be_begun_leaves_the_engine_unrecorded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A core that is restarted runs even if its disk is gone."""
    record = RecordConfig(str(tmp_path / "gone" / "run"))
    assert type(scheduler_of(CONFIG, record)) is Scheduler
    assert [one.levelno for one in caplog.records] == [logging.WARNING]
    assert "the engine runs unrecorded" in caplog.text


def missing_folder(folder: Path) -> Path:
    return folder / "nowhere" / "run"


def a_folder(folder: Path) -> Path:
    return folder


def another_file(folder: Path) -> Path:
    (folder / "letter").write_text("dear")
    return folder / "letter"


UNWRITABLE = [
    (missing_folder, "record: cannot write to .*run: No such file or directory"),
    (a_folder, "is a folder; name a file in it"),
    (another_file, "letter exists and is not a recording; choose another name"),
]


@pytest.mark.parametrize(("make", "complaint"), UNWRITABLE)
def test_a_path_that_cannot_be_written_is_refused_before_a_model_is_loaded(
    make: Callable[[Path], Path], complaint: str, tmp_path: Path
) -> None:
    path = str(make(tmp_path))
    for build in (LLM, AsyncLLM):
        with pytest.raises(ConfigError, match=complaint):
            build("no such model", record=path)


def test_a_server_refuses_a_path_that_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = str(tmp_path / "nowhere" / "run")
    assert main(["serve", "no-such-model", "--port", "0", "--record", wrong]) == 2
    assert f"paceline serve: record: cannot write to {wrong}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere/trace.json", "cannot write to {}: No such file or directory"),
        (".", "{} is not a plain file; choose another name"),
    ],
)
def test_a_timeline_that_cannot_be_written_is_refused(
    tmp_path: Path, name: str, message: str
) -> None:
    path = str(tmp_path / name)
    with pytest.raises(ConfigError, match="trace: " + message.format(path)):
        LLM("no-such-model", trace=path)


def test_a_timeline_begins_anew_and_keeps_the_earlier_one(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text("of an earlier run")
    begin_files({"trace": str(path)})
    assert json.loads(path.read_text()) == []
    assert (tmp_path / "trace-before.json").read_text() == "of an earlier run"


def test_a_check_leaves_no_file_and_harms_none(tmp_path: Path) -> None:
    path = tmp_path / "run"
    begin_files({"record": str(path), "max_num_seqs": 4})
    assert not path.exists()
    RecordedScheduler(CONFIG, RecordConfig(str(path))).close()
    before = path.read_bytes()
    begin_files({"record": str(path)})
    assert path.read_bytes() == before
    begin_files({})


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_stops_the_recording_and_not_the_engine(
    folder: str, caplog: pytest.LogCaptureFixture
) -> None:
    with LLM(folder, record="/dev/full", **TIGHT) as llm:
        outputs = llm.generate(prompts(4), progress=False)
    assert not any(output.error for output in outputs)
    warnings = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert warnings[0].startswith("recording to /dev/full has stopped: it failed: [Errno 28] No")
    assert warnings[0].endswith("; serving goes on")
