"""`paceline complete`: one prompt, by a model or by a server, streamed."""

import io
import signal
import sys

import pytest

from paceline.cli.main import main
from paceline.server.settings import ServerSettings
from tests.cli.support import SMALL, serving, wait_until
from tests.cli.test_main import Terminal, posix_only
from tests.server.support import Site, slow


def complete(model: str, prompt: str, *more: str) -> int:
    return main(["complete", prompt, "--model", model, "--max-tokens", "4", *SMALL, *more])


def ask(site: Site, prompt: str, *more: str) -> int:
    return main(["complete", prompt, "--url", site.url, "--max-tokens", "4", *more])


def test_a_prompt_is_completed(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert complete(model, "the fox", "--n", "2", "--temperature", "0.5", "--seed", "1") == 0
    said = capsys.readouterr()
    assert len(said.out.splitlines()) >= 2
    assert said.err == ""


def test_a_refused_prompt_prints_nothing_but_the_error(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert complete(model, "") == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("paceline complete: ")
    assert "the prompt is empty" in said.err


@pytest.mark.parametrize(
    ("argument", "stdin", "encoding"),
    [
        ("caf\udce9", b"", sys.getfilesystemencoding()),
        ("-", b"caf\xe9", "utf-8"),
        ("-", "café".encode(), "ascii"),
    ],
)
def test_a_text_that_is_not_in_the_encoding_of_the_locale_is_named_as_such(
    argument: str,
    stdin: bytes,
    encoding: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding))
    assert main(["complete", argument, "--url", "http://nowhere"]) == 1
    said = capsys.readouterr().err
    byte = "0xC3" if encoding == "ascii" else "0xE9"
    assert f"has the byte {byte}, which is not {encoding}, the encoding of this locale" in said
    assert "surrogate" not in said


def test_a_server_completes_prompts_and_answers_messages(
    site: Site, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ask(site, "the fox") == 0
    plain = capsys.readouterr().out
    monkeypatch.setattr("sys.stdin", io.StringIO("the fox"))
    assert ask(site, "-") == 0
    assert capsys.readouterr().out == plain
    assert ask(site, "the fox", "--chat") == 0
    assert capsys.readouterr().out != plain
    assert ask(site, "the fox", "--n", "3", "--temperature", "1", "--seed", "3") == 0
    assert len(capsys.readouterr().out.splitlines()) >= 3
    assert ask(site, "the " * 900) == 1
    assert "paceline complete: the server answers with status 400" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        ask(site, "x", "--depth", "2")
    assert "--depth sets up a model in this process" in capsys.readouterr().err


def test_a_server_that_requires_a_key(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("PACELINE_API_KEY", raising=False)
    with serving(settings=ServerSettings(api_keys=("sesame",))) as site:
        assert ask(site, "the fox") == 1
        wanted = "status 401: the API key is missing or wrong; give it with --api-key, or in"
        assert wanted in capsys.readouterr().err
        assert ask(site, "the fox", "--api-key", "sesame") == 0


@posix_only
def test_the_text_is_streamed_and_what_was_printed_stays() -> None:
    with serving(breaks=slow) as site:
        words = ("--max-tokens", "150", "--ignore-eos")
        terminal = Terminal("complete", "the fox", "--url", site.url, *words)
        open_here = site.engine._frontend.open
        wait_until(lambda: any(len(one.choices[0].token_ids) > 9 for one in [*open_here.values()]))
        terminal.read_for(0.05)
        assert open_here, "it goes on"
        assert terminal.seen
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.end() == 130
        wait_until(lambda: site.empty)
    assert "Traceback" not in terminal.seen
    assert terminal.seen.endswith("\n")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--n", "0"), "Invalid value for '--n'"),
        (("--temperature", "-1"), "Invalid value for '--temperature'"),
        (("--top-p", "3"), "top_p is 3.0; it must lie in (0, 1]"),
        (("--min-tokens", "99"), "min_tokens is 99; it must lie in 0..64"),
    ],
)
def test_values_out_of_range_are_wrong_usage(
    words: tuple[str, ...], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["complete", "x", *words])
    assert caught.value.code == 2
    assert complaint in capsys.readouterr().err
