import io
import logging
from threading import Thread

import pytest

from paceline.hub.progress_bar import LoadingStatus, ProgressBar
from paceline.hub.repository_files import silent
from tests.terminal import Terminal

MB = 1_000_000
HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"  # the cursor


@pytest.fixture(autouse=True)
def plain_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")


def test_a_terminal_shows_a_bar_with_what_has_arrived() -> None:
    stream = Terminal()
    with ProgressBar("smollm2", stream) as bar:
        bar(0, 100 * MB)
        bar(25 * MB, 100 * MB)
        bar(100 * MB, 100 * MB)
    drawn = stream.getvalue()
    assert "smollm2 ━" in drawn
    assert "100.0/100.0 MB" in drawn
    assert drawn.rindex(SHOW) > drawn.rindex(HIDE)


def test_an_interrupted_download_gives_the_cursor_back() -> None:
    def download(bar: ProgressBar) -> None:
        bar(0, 100 * MB)
        raise KeyboardInterrupt

    stream = Terminal()
    with pytest.raises(KeyboardInterrupt), ProgressBar("x", stream) as bar:
        download(bar)
    assert stream.getvalue().rindex(SHOW) > stream.getvalue().rindex(HIDE)


def test_a_complete_download_gives_the_terminal_back_at_once() -> None:
    stream = Terminal()
    with ProgressBar("x", stream) as bar:
        bar(0, 10 * MB)
        bar(10 * MB, 10 * MB)
        drawn = stream.getvalue()
        assert drawn.rindex(SHOW) > drawn.rindex(HIDE)
        bar(10 * MB, 10 * MB)
    assert stream.getvalue() == drawn


def test_a_label_in_brackets_is_shown_as_it_is() -> None:
    stream = Terminal()
    with ProgressBar("owner/[red]name", stream) as bar:
        bar(0, None)
    assert "owner/[red]name" in stream.getvalue()


def test_several_threads_may_report() -> None:
    stream = Terminal()
    with ProgressBar("x", stream) as bar:
        threads = [Thread(target=bar, args=(done * MB, 8 * MB)) for done in range(9)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert stream.getvalue().count("\n") == 1


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()])
def test_elsewhere_a_line_is_written_now_and_then(
    stream: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "dumb")
    with ProgressBar("tiny", stream) as bar:
        for done in range(1001):
            bar(done * MB, 1000 * MB)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 11
    assert lines[0] == "tiny: 0.0 of 1000.0 MB"
    assert lines[-1] == "tiny: 1000.0 of 1000.0 MB"


def test_elsewhere_without_a_known_end() -> None:
    stream = io.StringIO()
    bar = ProgressBar("tiny", stream)
    for done in range(0, 251, 10):
        bar(done * MB, None)
    assert stream.getvalue().splitlines() == ["tiny: 0.0 MB", "tiny: 100.0 MB", "tiny: 200.0 MB"]


def test_nothing_reported_leaves_no_line() -> None:
    stream = Terminal()
    with ProgressBar("x", stream):
        pass
    assert stream.getvalue() == ""
    silent(1, None)


log = logging.getLogger("paceline.anything")


def test_a_terminal_shows_the_latest_message() -> None:
    stream, logger = Terminal(), logging.getLogger("paceline")
    level = logger.level
    with LoadingStatus("smollm2", stream):
        assert "smollm2: starting" in stream.getvalue()
        log.info("loading [weights]")
    assert "smollm2: loading [weights]" in stream.getvalue()
    assert (logger.level, logger.handlers) == (level, [])


def test_warnings_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.root, "handlers", [])
    stream = Terminal()
    with LoadingStatus("smollm2", stream):
        log.warning("slower kernels are used")
    assert "smollm2: slower kernels are used\n" in stream.getvalue().replace("\r", "")


def test_a_download_takes_its_place() -> None:
    stream = Terminal()
    with LoadingStatus("smollm2", stream) as status:
        status(0, 10 * MB)
        status(10 * MB, 10 * MB)
        log.info("loading weights")
    drawn = stream.getvalue()
    assert drawn.index("starting") < drawn.index("10.0/10.0 MB") < drawn.index("loading weights")


def test_elsewhere_nothing_but_downloads_is_written() -> None:
    stream = io.StringIO()
    with LoadingStatus("smollm2", stream) as status:
        log.info("loading weights")
        assert stream.getvalue() == ""
        status(10 * MB, 10 * MB)
    assert stream.getvalue() == "smollm2: 10.0 of 10.0 MB\n"
