"""The phases of a start, and what begins before the imports have ended."""

import logging
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from paceline.core.system import start
from paceline.core.system.start import StartTimes, create_context, process_age_s, weight_files


def test_each_phase_is_a_line_with_its_seconds(caplog: pytest.LogCaptureFixture) -> None:
    times = iter([1.0, 3.5, 4.0, 4.25, 5.0, 6.0])
    found = StartTimes(lambda: next(times))
    with caplog.at_level(logging.INFO):
        with found.phase("imports"):
            pass
        with pytest.raises(ValueError, match="x"), found.phase("weights"):
            raise ValueError("x")
        with found.phase("weights"):
            pass
    assert caplog.messages == [
        "start: imports took 2.50 s",
        "start: weights took 0.25 s",
        "start: weights took 1.00 s",
    ]
    assert found.seconds == {"imports": 2.5, "weights": 1.25}
    assert str(found) == "3.75 s: imports 2.50, weights 1.25"


def test_the_age_of_this_process(tmp_path: Path) -> None:
    before = process_age_s()
    time.sleep(0.05)
    assert 0 < before < process_age_s()
    assert process_age_s(tmp_path) == 0.0


def test_files_are_read_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = "b.safetensors", "a.safetensors", "config.json"
    for name in names:
        (tmp_path / name).write_bytes(b"x")
    files = weight_files(str(tmp_path))
    assert [one.name for one in files] == ["a.safetensors", "b.safetensors"]
    assert weight_files(str(tmp_path / "config.json")) == [tmp_path / "config.json"]
    assert weight_files("qwen3-0.6b") == []
    advised: list[int] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda *given: advised.append(given[3]))
    open_before = len(os.listdir("/proc/self/fd"))
    start.read_ahead([*files, tmp_path / "gone"])
    assert advised == [os.POSIX_FADV_WILLNEED] * 2
    assert len(os.listdir("/proc/self/fd")) == open_before


def test_without_a_driver_there_is_no_context(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not create_context("libnothing.so.1")
    begun: list[str] = []
    monkeypatch.setattr(start, "Thread", lambda **given: begun.append(given["name"]) or _Started())
    for settings in ({"device": "cpu"}, {"tensor_parallel_size": 2}, {}, {"device": None}):
        start.begin_early("nothing", settings)
    assert begun.count("libraries") == 4  # of torch
    assert begun.count("cuda context") == 2


def test_libraries_are_loaded_before_the_import() -> None:
    code = (
        "import sys; from paceline.core.system.start import load_libraries; load_libraries(); "
        "assert 'torch' not in sys.modules; maps = open('/proc/self/maps').read(); "
        "assert 'libtorch_cpu' in maps; import torch; print(int(torch.ones(3).sum()))"
    )
    ended = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True)
    assert ended.stdout == b"3\n"


class _Started:
    def start(self) -> None:
        """Nothing runs."""
