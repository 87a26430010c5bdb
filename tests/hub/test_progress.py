import io

import pytest

from paceline.hub.progress import ProgressBar, silent

MB = 1_000_000


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture(autouse=True)
def width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def frames(stream: io.StringIO) -> list[str]:
    return stream.getvalue().split("\r\x1b[K")[1:]


def test_a_terminal_sees_a_bar_with_pace_and_time_left() -> None:
    stream, clock = Terminal(), Clock()
    with ProgressBar("smollm2", stream, clock) as bar:
        bar(0, 100 * MB)
        clock.seconds = 5.0
        bar(25 * MB, 100 * MB)
        clock.seconds = 65.0
        bar(100 * MB, 100 * MB)
    first, second, last = frames(stream)
    assert first.startswith("smollm2  [----")
    assert first.endswith("]  0.0 of 100.0 MB")
    assert second.endswith("]  25.0 of 100.0 MB  5.0 MB/s  0:15 left")
    assert second.count("#") == pytest.approx(second.count("-") / 3, abs=1)
    assert "-" not in last
    assert last.endswith("100.0 of 100.0 MB  1.5 MB/s  0:00 left\n")
    assert all(len(frame.rstrip()) < 80 for frame in (first, second, last))


def test_a_terminal_is_not_redrawn_for_every_byte_but_for_the_last() -> None:
    stream, clock = Terminal(), Clock()
    bar = ProgressBar("x", stream, clock)
    for done in range(101):
        clock.seconds = done / 100
        bar(done, 100)
    assert 8 <= len(frames(stream)) <= 12
    assert "0.0 of 0.0 MB" in frames(stream)[-1]
    assert "-" not in frames(stream)[-1]


def test_what_was_there_before_does_not_count_as_speed() -> None:
    stream, clock = Terminal(), Clock()
    bar = ProgressBar("x", stream, clock)
    bar(90 * MB, None)
    clock.seconds = 2.0
    bar(92 * MB, None)
    assert frames(stream) == ["x  90.0 MB", "x  92.0 MB  1.0 MB/s"]


def test_a_narrow_terminal_still_gets_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "10")
    stream = Terminal()
    ProgressBar("x", stream, Clock())(50, 100)
    assert "[##---]" in frames(stream)[0]


def test_more_than_was_promised_is_a_full_bar() -> None:
    stream = Terminal()
    ProgressBar("x", stream, Clock())(150, 100)
    assert "[" + "#" * 40 + "]" in frames(stream)[0]


def test_elsewhere_a_line_is_written_now_and_then() -> None:
    stream = io.StringIO()
    with ProgressBar("tiny", stream, Clock()) as bar:
        for done in range(1001):
            bar(done * MB, 1000 * MB)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 11
    assert lines[0] == "tiny: 0.0 of 1000.0 MB"
    assert lines[-1] == "tiny: 1000.0 of 1000.0 MB"


def test_elsewhere_without_a_known_end() -> None:
    stream = io.StringIO()
    bar = ProgressBar("tiny", stream, Clock())
    for done in range(0, 251, 10):
        bar(done * MB, None)
    assert stream.getvalue().splitlines() == ["tiny: 0.0 MB", "tiny: 100.0 MB", "tiny: 200.0 MB"]


def test_nothing_drawn_leaves_no_line() -> None:
    stream = Terminal()
    with ProgressBar("x", stream):
        pass
    assert stream.getvalue() == ""
    silent(1, None)
