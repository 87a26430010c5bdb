"""What recording costs: CPU time of a step with and without it, and of a new file.

For example `python benchmarks/recording.py steady:64 async:64 --repeat 5`. It needs numpy alone,
and prints one JSON line per case.
"""

import argparse
import json
import platform
import statistics
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cases import BLOCK_SIZE, MAX_MODEL_LEN, Case, parse
from harness import clock, measure
from ours import AS_PEER, PacelineSide
from workloads import Work

from paceline.sched.replay.recorded_scheduler import RecordedScheduler

DEFAULT = ("steady:16", "steady:64", "steady:256", "async:64")


class RecordedSide(PacelineSide):
    """The same scheduler, recorded."""

    folder = Path()
    ended: RecordedScheduler

    def __init__(self, case: Case, work: list[Work]) -> None:
        super().__init__(case, work)
        settings: dict[str, Any] = {**self._scheduler.config.to_dict()}
        assert settings["block_size"] == BLOCK_SIZE
        assert settings["max_model_len"] == MAX_MODEL_LEN
        assert not case.as_peer or AS_PEER.items() <= settings.items()
        record = str(self.folder / "run.paceline")
        self._scheduler = RecordedSide.ended = RecordedScheduler.create(**settings, record=record)


def compared(spec: str, repeat: int) -> dict[str, Any]:
    """Both in turns; medians of the runs."""
    plain: list[dict[str, float]] = []
    recorded: list[dict[str, float]] = []
    for _ in range(repeat):
        plain.append(measure(parse(spec), PacelineSide))
        with TemporaryDirectory() as folder:
            RecordedSide.folder = Path(folder)
            recorded.append(measure(parse(spec), RecordedSide))
            RecordedSide.ended.close()
    unit = "us" if "us" in plain[0] else "ms"
    before, after = (statistics.median(one[unit] for one in runs) for runs in (plain, recorded))
    names = {f"plain_{unit}": before, f"recorded_{unit}": after, f"added_{unit}": after - before}
    return {"case": spec, **{name: round(value, 2) for name, value in names.items()}}


def new_file(running: int, num_blocks: int) -> dict[str, Any]:
    """A file that continues another: how long no step is planned, and how large it begins."""
    case = parse(f"steady:{running}")
    with TemporaryDirectory() as folder:
        record = str(Path(folder) / "run.paceline")
        scheduler = RecordedScheduler.create(
            max_num_seqs=running,
            max_num_batched_tokens=8192,
            max_model_len=MAX_MODEL_LEN,
            num_blocks=num_blocks,
            block_size=BLOCK_SIZE,
            record=record,
        )
        side = PacelineSide(case, case.work())
        side._scheduler = scheduler
        for serial, item in enumerate(case.work()):
            side.submit(serial, item)
        for _ in range(2 * running):
            step = side.fake(side.plan())
            side.commit(step.plan, step.result)
        begin = clock()
        scheduler.recording.next_file()
        spent_ms = (clock() - begin) / 1e6
        size = scheduler.recording.size_bytes
        scheduler.close()
    return {
        "case": "new_file",
        "running": running,
        "num_blocks": num_blocks,
        "ms": round(spent_ms, 1),
        "bytes": size,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Measure what recording costs.")
    parser.add_argument("specs", nargs="*", default=DEFAULT, metavar="CASE")
    parser.add_argument("--repeat", type=int, default=5)
    given = parser.parse_args()
    print(json.dumps({"machine": platform.machine(), "python": platform.python_version()}))
    measure(parse("steady:4"), PacelineSide)  # warms the code paths
    for spec in given.specs:
        print(json.dumps(compared(spec, given.repeat)), flush=True)
    for running, blocks in ((64, 8_192), (256, 65_536)):
        print(json.dumps(new_file(running, blocks)), flush=True)
