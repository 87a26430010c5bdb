"""A trace that several processes write, and what is left of it when something fails."""

import errno
import json
import logging
import subprocess
import sys
from io import FileIO
from pathlib import Path

import pytest

from paceline.engine.trace import trace_file
from paceline.engine.trace.trace_file import TraceFile, TraceSpan, TraceTarget, TraceWindows
from tests.engine.trace.timeline import Timeline

WRITER = """
import sys
from paceline.engine.trace.trace_file import TraceFile
file = TraceFile(sys.argv[1], sys.argv[2])
for number in range(300):
    file.slice("host", f"{sys.argv[2]} {number}", number, number + 0.5, {"text": "x" * 400})
    if number % 3 == 0:
        file.flush()
file.flush()
"""


def test_processes_write_to_one_file_at_the_same_time(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    trace_file.begin(path)
    assert json.loads(path.read_text()) == []
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(path), name]) for name in "ab"]
    assert [one.wait() for one in writers] == [0, 0]
    found = Timeline(path)
    assert sorted(found.processes.values()) == ["a", "b"]
    names = [one["name"] for one in found.tracks()["host"]]
    assert sorted(names) == sorted(f"{name} {number}" for name in "ab" for number in range(300))


def test_a_trace_of_a_process_that_died_is_continued(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    dead = TraceFile(path, "engine")
    dead.slice("host", "plan", 1.0, 1.5)
    dead.flush()
    dead.slice("host", "launch", 1.5, 2.0)  # it is not written any more
    successor = TraceFile(path, "engine")
    successor.slice("host", "plan", 3.0, 4.0)
    successor.flush()
    assert [one["dur"] for one in Timeline(path).named("plan")] == [5e5, 1e6]


def test_events_that_wait_take_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    file = TraceFile(path, "engine")
    for number in range(1000):
        file.slice("host", "plan", number, number + 1, {"text": "x" * 100})
    written = len(json.loads(path.read_text()))
    assert 500 < written < 1000
    file.flush()
    assert len(json.loads(path.read_text())) == 1002  # with the names of process and track


def test_a_file_that_cannot_be_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = str(tmp_path / "missing" / "trace.json")
    assert TraceTarget(path).opened() is None
    assert f"cannot write a trace to {path}: No such file or directory" in caplog.text
    assert TraceTarget().opened() is None
    assert len(caplog.records) == 1


def test_a_full_disk_ends_the_trace_alone(caplog: pytest.LogCaptureFixture) -> None:
    file = TraceFile("/dev/full", "engine")
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            file.counter("requests", 0.0, {"running": 1})
            file.flush()
    (said,) = caplog.messages
    assert said == "the trace in /dev/full ends here: No space left on device"


def test_a_list_stays_whole_when_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "trace.json"
    file = TraceFile(path, "engine")
    file.flush()
    before = path.read_text()
    whole = trace_file.write_all

    def half(file: FileIO, content: bytes) -> None:
        monkeypatch.setattr(trace_file, "write_all", whole)
        file.write(content[: len(content) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(trace_file, "write_all", half)
    file.slice("host", "plan", 1.0, 1.5)
    file.flush()
    assert path.read_text() == before


def test_the_trace_of_an_earlier_run_is_kept(tmp_path: Path) -> None:
    path, before = tmp_path / "trace.json", tmp_path / "trace-before.json"
    trace_file.begin(path)
    trace_file.keep_earlier(path)
    assert not before.exists()  # it has no events
    TraceFile(path, "engine").flush()
    content = path.read_text()
    trace_file.keep_earlier(path)
    assert before.read_text() == content
    assert not path.exists()


def test_windows_choose_what_a_timeline_has(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    trace_file.begin(path)
    file, windows = TraceFile(path, "engine"), TraceWindows(path)
    with pytest.raises(ValueError, match="being written already; /stop_profile"):
        windows.start(0.5)
    for number in range(10):
        if number == 3:
            windows.stop(2.5)
            with pytest.raises(ValueError, match="not being written; /start_profile"):
                windows.stop(2.6)
        if number == 6:
            windows.start(5.6)
        file.slice("host", f"step {number}", number, number + 0.5)
    file.counter("requests", 4.0, {"running": 1})
    file.span("request", "a", TraceSpan("a", 1.0, 4.0), [TraceSpan("waiting", 3.0, 4.0)])
    file.span("request", "b", TraceSpan("b", 3.0, 4.0))
    file.flush()
    found = Timeline(path)
    names = [one["name"] for one in found.tracks()["host"]]
    assert names == [f"step {number}" for number in (0, 1, 2, 6, 7, 8, 9)]
    assert not found.named("requests")
    assert not found.named("b")
    assert len(found.named("waiting")) == 2  # a part of a request that is there
    trace_file.begin(path)
    assert windows.spans() is None
