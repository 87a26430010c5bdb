"""Progress of many requests: what is said, how often, and on a terminal."""

import io

import pytest

from paceline.cli.progress import RequestProgress, duration
from tests.terminal import Terminal


def test_a_line_for_each_tenth_has_the_rate_and_the_time_left() -> None:
    now, out = [100.0], io.StringIO()
    with RequestProgress(40, stream=out, clock=lambda: now[0]) as progress:
        for done in range(1, 41):
            now[0] += 0.5
            progress.show(done, failed=done // 10, skipped=0)
    lines = out.getvalue().splitlines()
    assert len(lines) == 10
    assert lines[0] == "4/40 requests, 0 failed, 2.0/s, 18 s left"
    assert lines[4] == "20/40 requests, 2 failed, 2.0/s, 10 s left"
    assert lines[9] == "40/40 requests, 4 failed, 2.0/s"


def test_what_was_done_before_does_not_count_for_the_rate() -> None:
    now = [0.0]
    progress = RequestProgress(1000, stream=io.StringIO(), clock=lambda: now[0])
    now[0] = 10.0
    assert (
        progress.status(510, 0, skipped=500)
        == "510/1000 requests, 0 failed, 1.0/s, 8 min 10 s left"
    )


def test_requests_that_are_skipped_print_no_line() -> None:
    out = io.StringIO()
    with RequestProgress(10, stream=out) as progress:
        for done in range(1, 10):
            progress.show(done, skipped=done)
        progress.show(10, skipped=9)
    assert len(out.getvalue().splitlines()) == 1


def test_a_terminal_has_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")
    out = Terminal()
    with RequestProgress(3, "runs", stream=out) as progress:
        progress.show(1)
        progress.show(3, failed=1)
    assert "━" in out.getvalue()
    assert "3/3 runs, 1 failed, " in out.getvalue()


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (59, "59 s"), (200, "3 min 20 s"), (7500, "2 h 5 min")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text
