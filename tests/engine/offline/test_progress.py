"""The progress of a batch: a bar on a terminal, one line elsewhere."""

import os
import subprocess
import sys
from io import StringIO

import pytest

from paceline.engine.offline.progress import Progress, PromptCounts
from tests.terminal import Terminal

HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"  # the cursor

WITHOUT_RICH = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "rich":
            raise ModuleNotFoundError("no rich here", name="rich")

sys.meta_path.insert(0, Refuse())
from io import StringIO
from paceline.engine.offline.progress import Progress, PromptCounts

class Terminal(StringIO):
    def isatty(self):
        return True

for stream in (StringIO(), Terminal()):
    with Progress(2, stream=stream, clock=lambda: 0.0) as bar:
        bar.show(PromptCounts(1))
        bar.finish(PromptCounts(2))
    assert stream.getvalue() == "2/2 prompts  0.0 tokens/s out  0.0 in\\n", stream.getvalue()
"""


@pytest.fixture(autouse=True)
def plain_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("NO_COLOR", "1")


def test_a_terminal_gets_a_bar_that_is_drawn_over() -> None:
    now, stream = [0.0], Terminal()
    with Progress(4, stream=stream, clock=lambda: now[0]) as bar:
        now[0] = 2.0
        bar.show(PromptCounts(1, read=30, written=20))
        bar.show(PromptCounts(2, read=40, written=30))  # too soon to draw again
        bar.finish(PromptCounts(4, read=80, written=60))
    drawn = stream.getvalue()
    assert "1/4 prompts  10.0 tokens/s out  15.0 in" in drawn
    assert "2/4" not in drawn
    assert "4/4 prompts  30.0 tokens/s out  40.0 in" in drawn
    assert drawn.rindex(SHOW) > drawn.rindex(HIDE)


def test_an_interrupted_batch_gives_the_cursor_back() -> None:
    def run(bar: Progress) -> None:
        bar.show(PromptCounts(1, read=30, written=20))
        raise KeyboardInterrupt

    stream = Terminal()
    with pytest.raises(KeyboardInterrupt), Progress(4, stream=stream) as bar:
        run(bar)
    assert stream.getvalue().rindex(SHOW) > stream.getvalue().rindex(HIDE)


def test_a_file_gets_one_line() -> None:
    now, stream = [0.0], StringIO()
    with Progress(4, stream=stream, clock=lambda: now[0]) as bar:
        now[0] = 2.0
        bar.show(PromptCounts(1, read=30, written=20))
        bar.finish(PromptCounts(4, read=80, written=60))
    assert stream.getvalue() == "4/4 prompts  30.0 tokens/s out  40.0 in\n"


@pytest.mark.parametrize("stream", [StringIO(), Terminal()], ids=["file", "terminal"])
def test_failed_prompts_are_counted(stream: StringIO) -> None:
    with Progress(4, stream=stream, clock=lambda: 0.0) as bar:
        bar.finish(PromptCounts(4, failed=3))
    assert "4/4 prompts  3 failed  0.0 tokens/s" in stream.getvalue()


def test_rich_is_not_required() -> None:
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", WITHOUT_RICH], env=environ, check=True)
