import io
import logging

import pytest

from paceline.hub.progress_bar import LoadingStatus

MB = 1_000_000
log = logging.getLogger("paceline.anything")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def plain_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")


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
