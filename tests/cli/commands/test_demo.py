"""`paceline demo`: an answer without log lines, and an end without an error."""

import re
import signal

import httpx
import pytest

from paceline.cli.main import main
from tests.cli.test_main import Terminal, posix_only


@posix_only
def test_the_answer_stands_alone_and_a_signal_is_the_usual_end(model: str) -> None:
    """SIGTERM does what Ctrl-C does."""
    terminal = Terminal("demo", "--model", model, "--question", "the fox", CI="")
    terminal.read_until("Press Ctrl-C to stop it.", limit_s=180)
    terminal.process.send_signal(signal.SIGTERM)
    assert terminal.end() == 0
    url = re.search(r"Serving on (\S+);", terminal.seen)
    assert url is not None
    with pytest.raises(httpx.ConnectError):  # its server has ended too
        httpx.get(url[1])
    _, _, answer = terminal.seen.partition("> the fox\r\n")
    assert answer.partition("\r\n")[0]
    assert "vllm:generation_tokens_total" in answer
    for line in ("INFO", "WARNING", "Traceback", "error"):
        assert line not in terminal.seen


def test_a_model_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--model", "/nowhere"]) == 2
    assert capsys.readouterr().err == "paceline demo: there is no model at /nowhere\n"
