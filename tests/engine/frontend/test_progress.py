"""The bar of a batch: over itself on a terminal, one line elsewhere."""

from io import StringIO

from paceline.engine.frontend.progress import Progress


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_a_bar_that_is_drawn_over() -> None:
    now, stream = [0.0], Terminal()
    bar = Progress(4, stream=stream, clock=lambda: now[0])
    now[0] = 2.0
    bar.show(1, 30, 20)
    bar.show(2, 40, 30)  # too soon to draw again
    bar.finish(4, 80, 60)
    first, last = stream.getvalue().split("\r\x1b[K")[1:]
    assert "1/4 prompts  10.0 tokens/s out  15.0 in" in first
    assert "#" in first
    assert "-" in first
    assert last.endswith("4/4 prompts  30.0 tokens/s out  40.0 in\n")
    assert "-" not in last


def test_a_file_gets_one_line() -> None:
    now, stream = [0.0], StringIO()
    bar = Progress(4, stream=stream, clock=lambda: now[0])
    now[0] = 2.0
    bar.show(1, 30, 20)
    bar.finish(4, 80, 60)
    assert stream.getvalue() == "4/4 prompts  30.0 tokens/s out  40.0 in\n"
