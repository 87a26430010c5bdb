"""`paceline chat`: piped, in a terminal, on a server and in this process."""

import io
import json
import re
import signal
from pathlib import Path

import pytest

from paceline.cli.commands.chat import HELP, SAMPLED
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
        "/params stop=. ignore_eos=true",
        "/params ignore_eos=",
        "/params colour=red",
        "/params temperature=hot",
        "/params top_p=7",
        "/save",
        "/dance",
        "/quit",
        "never asked",
    ]
    assert talk(monkeypatch, *lines, arguments=["--url", f"{site.url}/v1"]) == 1
    said = capsys.readouterr()
    assert said.out.removeprefix(HELP + "\n").splitlines() == [
        "temperature=0.0 max_tokens=8",
        "temperature=0.5 max_tokens=3",
        "temperature=0.5 max_tokens=3 stop=['.'] ignore_eos=True",
        "temperature=0.5 max_tokens=3 stop=['.']",
    ]
    *wrong, unknown = said.err.splitlines()
    assert wrong[0].startswith("paceline chat: no parameter 'colour'; there are temperature, ")
    assert wrong[1:] == [
        "paceline chat: 'hot' is not a value of temperature",
        "paceline chat: top_p is 7.0; it must lie in (0, 1]",
        "paceline chat: /save needs the name of a file",
    ]
    assert unknown == "paceline chat: no command /dance; /help lists the commands"


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
    assert talk(monkeypatch, *lines, arguments=["--url", site.url]) == 1
    said = capsys.readouterr()
    first, last = said.out.splitlines()
    assert first == last
    assert said.err.startswith("paceline chat: the server answers with status 400")


def test_a_line_in_another_encoding_is_refused_and_the_chat_goes_on(
    site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = b"caf\xe9\n/system caf\xe9\nhello\n"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(lines), "utf-8"))
    assert main(["chat", *SHORT, "--url", site.url]) == 1
    said = capsys.readouterr()
    assert said.err.count("has the byte 0xE9, which is not utf-8") == 2
    assert said.out.count("\n") == 1


def test_a_message_of_several_lines(
    site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "chat.json"
    lines = ['"""the fox', "", "  jumps", 'over"""', f"/save {file}", '"""one line"""']
    assert talk(monkeypatch, *lines, arguments=["--url", site.url]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    (question, answer) = json.loads(file.read_text())["messages"]
    assert question == {"role": "user", "content": "the fox\n\n  jumps\nover"}
    assert answer["role"] == "assistant"
    assert talk(monkeypatch, '"""never', "closed", arguments=["--url", site.url]) == 0
    assert capsys.readouterr().out == ""


def test_a_conversation_is_saved_and_loaded(
    site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "chat.json"
    lines = ["/system be brief", "hello", f"/save {file}", "the fox", "/reset", "hello"]
    arguments = ["--url", site.url, "--top-k", "5", "--stop", "END"]
    assert talk(monkeypatch, *lines, arguments=arguments) == 0
    first, second, again = capsys.readouterr().out.splitlines()
    saved = json.loads(file.read_text())
    assert [one["role"] for one in saved["messages"]] == ["system", "user", "assistant"]
    assert saved["top_k"] == 5
    assert (saved["temperature"], saved["max_tokens"], saved["stop"]) == (0.0, 8, ["END"])
    lines = ["the fox", "/reset", "hello", f"/load {file}", "the fox", "/params"]
    plain = ["--url", site.url]
    assert talk(monkeypatch, *lines, arguments=[*plain, "--load", str(file)]) == 0
    *found, params = capsys.readouterr().out.splitlines()
    assert found == [second, again, second]
    assert first == again
    assert params == "temperature=0.0 max_tokens=8 top_k=5 stop=['END']"


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("{}", "has no conversation"),
        ('{"messages": [{"role": "king", "content": ""}]}', "has no conversation"),
        ('{"messages": [], "colour": 3}', "unknown parameter 'colour'"),
        ('{"messages": [], "top_p": 3}', "top_p is 3; it must lie in"),
        ("[", "is not complete"),
    ],
)
def test_a_file_that_is_no_conversation_is_refused(
    content: str,
    complaint: str,
    site: Site,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    (tmp_path / "c").write_text(content)
    arguments = ["--url", site.url]
    assert talk(monkeypatch, f"/load {tmp_path / 'c'}", arguments=arguments) == 1
    assert complaint in capsys.readouterr().err
    assert talk(monkeypatch, f"/save {tmp_path}", arguments=arguments) == 1
    assert "cannot be written: Is a directory" in capsys.readouterr().err


def test_a_parameter_out_of_range_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["chat", "--temperature", "-5"])
    assert caught.value.code == 2
    assert "'-5' should be greater than or equal to 0" in capsys.readouterr().err


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
    assert talk(monkeypatch, *lines, arguments=[model, *SMALL]) == 1
    said = capsys.readouterr()
    first, second = said.out.splitlines()
    assert first == second
    assert "paceline chat: " in said.err


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
