"""A module in a child process: messages in order, its end, and what is left of it."""

import signal
from pathlib import Path

import pytest

from paceline.engine.core.child_process import ChildProcess

ECHO = "tests.engine.core.echo"


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
