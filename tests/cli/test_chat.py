"""`paceline chat`: piped, in a terminal, on a server and in this process."""

import io
import re
import signal

import pytest

from paceline.cli.chat import HELP, SAMPLED
from paceline.cli.main import main
from paceline.server.settings import ServerSettings
from tests.cli.support import SMALL, serving, wait_until
from tests.cli.test_main import COLOUR, Terminal, posix_only
from tests.server.support import Site, slow

SHORT = ("--temperature", "0", "--max-tokens", "8")


def talk(monkeypatch: pytest.MonkeyPatch, *lines: str, arguments: list[str]) -> int:
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
    return main(["chat", *SHORT, *arguments])


def test_each_line_is_a_turn_of_one_conversation(
    site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = ["hello", "", "  ", "the fox", "/reset", "hello"]
    assert talk(monkeypatch, *lines, arguments=["--url", site.url]) == 0
    said = capsys.readouterr()
    first, second, third = said.out.splitlines()
    assert first == third != second
    assert said.err == ""
    assert "\x1b" not in said.out


def test_piped_input_is_sampled_with_a_hint_unless_a_temperature_is_given(
    site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("/quit\n"))
    assert main(["chat", "--url", site.url]) == 0
    assert capsys.readouterr().err == SAMPLED + "\n"


def test_commands(
    site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [
        "/help",
        "/params",
        "/params max_tokens=3 temperature=0.5",
        "/params colour=red",
        "/dance",
        "/quit",
        "never asked",
    ]
    assert talk(monkeypatch, *lines, arguments=["--url", f"{site.url}/v1"]) == 0
    assert capsys.readouterr().out.removeprefix(HELP + "\n").splitlines() == [
        "temperature=0.0 max_tokens=8",
        "temperature=0.5 max_tokens=3",
        "usage: /params temperature=0.7 max_tokens=512",
        "temperature=0.5 max_tokens=3",
        "no command /dance; /help lists the commands",
    ]


def test_a_system_message_changes_the_answer(
    site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = ["hello", "/system the lazy dog", "hello", "/system", "hello"]
    assert talk(monkeypatch, *lines, arguments=["--url", site.url]) == 0
    plain, told, again = capsys.readouterr().out.splitlines()
    assert plain == again != told
    assert (
        talk(monkeypatch, "hello", arguments=["--url", site.url, "--system", "the lazy dog"]) == 0
    )
    assert capsys.readouterr().out.splitlines() == [told]


def test_a_refused_turn_is_removed(
    site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = ["hello", "the " * 400, "/reset", "hello"]
    assert talk(monkeypatch, *lines, arguments=["--url", site.url]) == 0
    first, *error, last = [line for line in capsys.readouterr().out.splitlines() if line]
    assert first == last
    assert "error: the server answers with status 400" in error[0]


def test_a_server_that_requires_a_key(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(settings=ServerSettings(api_keys=("sesame",))) as site:
        assert talk(monkeypatch, "hello", arguments=["--url", site.url]) == 1
        assert "paceline chat: the server answers with status 401" in capsys.readouterr().err
        monkeypatch.setenv("PACELINE_API_KEY", "sesame")
        assert talk(monkeypatch, "hello", arguments=["--url", site.url]) == 0


def test_a_model_in_this_process(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = ["the fox", "/reset", "the fox", "the dog " * 300]
    assert talk(monkeypatch, *lines, arguments=[model, *SMALL]) == 0
    first, second, *error = [line for line in capsys.readouterr().out.splitlines() if line]
    assert first == second
    assert error[0].startswith("error: ")


@posix_only
def test_an_interrupt_stops_the_answer_and_not_the_chat() -> None:
    with serving(breaks=slow) as site:
        terminal = Terminal("chat", "--url", site.url, "--temperature", "0")
        terminal.read_until("> ")
        terminal.type("the fox\n/params max_tokens=4\n")
        open_here = site.open_here
        wait_until(lambda: any(len(one.choices[0].token_ids) > 3 for one in [*open_here.values()]))
        terminal.process.send_signal(signal.SIGINT)
        terminal.read_until("stopped")
        terminal.read_until("max_tokens=4\r\n")
        wait_until(lambda: site.empty)
        terminal.type("the dog\n")
        terminal.read_until("tokens/s")
        terminal.type("/quit\n")
        assert terminal.end() == 0
    assert re.search(r"4 tokens, \d+\.\d tokens/s", terminal.seen)
    assert COLOUR.search(terminal.seen)
    assert "Traceback" not in terminal.seen
