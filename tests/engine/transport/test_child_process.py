"""A module in a child process: messages in order, its end, and what is left of it."""

import os
import signal
import tempfile
from pathlib import Path

import pytest

from paceline.core.errors import ConfigError
from paceline.engine.transport.child_process import ChildProcess, ProcessPlace

ECHO = "tests.engine.loop.echo"


def test_messages_come_back_in_order_until_the_process_is_gone() -> None:
    child = ChildProcess(ECHO)
    for word in (b"one", b"two"):
        child.send(word)
        assert child.receive() == word
    child.kill()
    assert child.receive() is None
    assert child.returncode == -signal.SIGKILL
    child.close()
    child.send(b"dropped")
    assert not Path(child._folder.name).exists()


@pytest.mark.parametrize(("last", "code"), [(b"exit", 0), (b"stay", -signal.SIGKILL)])
def test_a_process_that_does_not_exit_is_killed(last: bytes, code: int) -> None:
    child = ChildProcess(ECHO)
    child.send(last)
    assert child.receive() == last
    child.wait(5.0 if last == b"exit" else 0.01)
    assert child.returncode == code
    child.close()


def test_a_temporary_folder_with_a_path_too_long_for_sockets_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = 107 - len("/paceline-12345678/out")
    name = "x" * (limit - len(str(tmp_path)) - 1)
    for folder, fits in ((tmp_path / name, True), (tmp_path / f"{name}x", False)):
        folder.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(folder))
        if fits:
            child = ChildProcess(ECHO)
            child.send(b"exit")
            assert child.receive() == b"exit"
            child.wait(5.0)
            child.close()
        else:
            with pytest.raises(ConfigError, match="set TMPDIR to another folder"):
                ChildProcess(ECHO)


def test_a_process_runs_on_its_cores_and_has_its_variables() -> None:
    before = os.sched_getaffinity(0)
    last = max(before)
    child = ChildProcess(ECHO, place=ProcessPlace((last,), {"CUDA_VISIBLE_DEVICES": "7"}))
    assert os.sched_getaffinity(child.pid) == {last}
    assert os.sched_getaffinity(0) == before
    child.send(b"exit")
    assert child.receive() == b"exit"
    assert b"CUDA_VISIBLE_DEVICES=7" in Path(f"/proc/{child.pid}/environ").read_bytes()
    child.wait(5.0)
    child.close()
