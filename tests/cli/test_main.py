"""The command line as a process: subcommands, terminals, pipes and interrupts."""

import io
import os
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import paceline
from paceline.cli.app import app
from paceline.cli.commands.list import ListOptions
from paceline.cli.main import accept_any_encoding, main, warn_of
from paceline.core.settings.config import Config
from paceline.sched.replay.reader import Preamble
from paceline.viewer.play.palette import MARKS, POOL, STEPS, STORED

SOURCE = Path(__file__).parent.parent.parent / "src"
COMMAND = [sys.executable, "-m", "paceline"]
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
TO_OTHER_SCREEN, FROM_OTHER_SCREEN = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"


def environment(**more: str) -> dict[str, str]:
    kept = {
        name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS")
    }
    return {**kept, "PYTHONPATH": str(SOURCE), "TERM": "xterm-256color", **more}


def ran(*arguments: str, stdin: str = "", **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        env=environment(**more),
        input=stdin,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )


class Terminal:
    """A command that believes it talks to a person."""

    def __init__(self, *arguments: str, **more: str) -> None:
        import pty

        self._main, side = pty.openpty()
        # Tests that run in the background hand down that interrupts are ignored.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self.process = subprocess.Popen(
            [*COMMAND, *arguments],
            env=environment(COLUMNS="100", LINES="40", **more),
            stdin=side,
            stdout=side,
            stderr=side,
            start_new_session=True,
        )
        os.close(side)
        self.seen = ""

    def read_until(self, text: str = "", limit_s: float = 60.0) -> str:
        """Everything so far, once `text` was seen; to the end where it is empty."""
        deadline = time.monotonic() + limit_s
        while not text or text not in self.seen:
            left_s = max(deadline - time.monotonic(), 0.0)
            ready, _, _ = select.select([self._main], [], [], left_s)
            assert ready, f"{text!r} did not come: {self.seen!r}"
            try:
                new = os.read(self._main, 65536)
            except OSError:  # how Linux tells that the other side is closed
                new = b""
            if not new:
                break
            self.seen += new.decode("utf-8", errors="replace")
        return self.seen

    def read_for(self, span_s: float) -> None:
        """Whatever comes within so long."""
        end = time.monotonic() + span_s
        while select.select([self._main], [], [], max(end - time.monotonic(), 0.0))[0]:
            self.seen += os.read(self._main, 65536).decode("utf-8", errors="replace")

    def type(self, text: str) -> None:
        os.write(self._main, text.encode())

    def end(self) -> int:
        self.read_until()
        status = self.process.wait(timeout=60)
        os.close(self._main)
        return status


posix_only = pytest.mark.skipif(sys.platform == "win32", reason="needs pseudo-terminals")


# -- subcommands ------------------------------------------------------------


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"paceline {paceline.__version__}\n"


@pytest.mark.parametrize("arguments", [["--help"], ["play", "--help"], ["replay", "--help"]])
def test_help(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 0
    assert capsys.readouterr().out.startswith("Usage: paceline")


def test_help_explains_every_sign(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.cli.commands.play.can_encode", lambda _: True)
    with pytest.raises(SystemExit):
        main(["play", "--help"])
    said = capsys.readouterr().out
    for mark in (*MARKS.values(), *POOL, *STEPS.values(), STORED):
        assert f"  {mark.symbol} {mark.meaning}\n" in said


def test_help_where_only_ascii_can_be_written() -> None:
    done = ran("play", "--help", PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    assert "  v swapped out\n" in done.stdout


@pytest.mark.parametrize("arguments", [[], ["bench"]])
def test_without_a_command_the_commands_are_listed(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "\nCommands:\n" in said.err


@pytest.mark.parametrize("arguments", [[], ["dance"], ["--unheard-of"]])
def test_wrong_usage_ends_with_status_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "Usage: paceline" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["serv"], "did you mean 'serve'?"),
        (
            ["serve", "--prot", "1"],
            "paceline serve: error: no such option: --prot; did you mean --port?",
        ),
        (["serve", "--max-num-seq", "1"], "did you mean --max-num-seqs?"),
        (
            ["serve", "--port", "http"],
            "invalid value for '--port': 'http' should be a valid integer",
        ),
        (["serve", "--port", "65536"], "'65536' should be less than or equal to 65535"),
        (["serve", "--free-order", "oldest"], "'oldest' is not one of 'unsealed_first', 'lru'"),
        (["serve", "a", "--model", "b"], "two models are given: a and --model b"),
        (["play", "--workload", "basic"], "no built-in workload 'basic'; did you mean 'basics'?"),
        (["bench", "serv"], "did you mean 'serve'?"),
        (["bench", "serve", "--input-len", "9-3"], "'9-3' is not a range of positive lengths"),
        (["bench", "serve", "--input-len", "9" * 20], "of positive lengths up to 2147483647"),
        (["bench", "serve", "--output", "/"], "/ is a folder; name a file in it"),
        (["bench", "serve", "--burstiness", "0"], "--burstiness must be positive"),
        (["chat", "--url", "x", "--depth", "2"], "--depth sets up a model in this process"),
        (["run-batch", "-i", "nowhere", "-o", "x"], "--input nowhere is not a file"),
    ],
)
def test_mistakes_are_told_with_the_nearest_name(
    arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    usage, error = capsys.readouterr().err.splitlines()
    assert usage.startswith("Usage: paceline")
    assert expected.lower() in error.lower()


def test_a_wrong_setting_is_the_askers_fault(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["complete", "x", "--model", model, "--block-size", "0"]) == 2
    assert main(["complete", "x", "--model", model, "--policy", "best"]) == 2
    said = capsys.readouterr().err
    assert "paceline complete: block_size is 0; it must be positive" in said
    assert "no policy 'best'" in said


# Runs commands where nothing is installed beyond the heart and the command line.
LIGHTLY = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "msgspec", "zmq", "fastapi", "uvicorn", "starlette",
                                      "tokenizers", "jinja2", "safetensors", "prometheus_client"}:
            raise ModuleNotFoundError(f"{name} is not installed here", name=name)

sys.meta_path.insert(0, Refuse())
from paceline.cli.main import main
for line in sys.argv[1:]:
    try:
        print(line, "ends with", main(line.split()))
    except SystemExit as end:
        print(line, "ends with", end.code)
"""


def lightly(*commands: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", LIGHTLY, *commands],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )


def test_commands_that_need_no_model_need_little() -> None:
    expected = {
        "play --fast": 0,
        "replay nowhere": 2,
        "--help": 0,
        "serve --help": 0,
        "run-batch --help": 0,
        "bench serve --url http://127.0.0.1:9": 1,
        "explain x --url http://127.0.0.1:9": 1,
        "chat --url http://127.0.0.1:9": 1,
        "collect-env": 0,
    }
    done = lightly(*expected)
    ends = [line for line in done.stdout.splitlines() if " ends with " in line]
    assert ends == [f"{words} ends with {status}" for words, status in expected.items()]
    assert "not installed" not in done.stderr
    assert done.stderr.count("does not answer") == 3
    assert done.stderr.count("--url") == 3


def test_commands_that_need_a_model_say_what_is_missing() -> None:
    commands = ["serve smollm2", "complete hello", "bench throughput"]
    done = lightly(*commands)
    assert done.stdout.splitlines() == [f"{words} ends with 1" for words in commands]
    assert done.stderr.count("pip install 'paceline[serve]'") == len(commands)
    assert "Traceback" not in done.stderr


def test_a_script_that_needs_a_model_is_told_what_is_missing() -> None:
    script = LIGHTLY.partition("from paceline")[0] + "from paceline import LLM"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert "ImportError: LLM needs " in done.stderr
    assert "pip install 'paceline[model]'" in done.stderr


@pytest.mark.parametrize("arguments", [["--help"], ["bench", "--help"]])
def test_summaries_are_the_first_lines_of_the_commands(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    made = app() if len(arguments) == 1 else app().get_command(None, "bench")
    for name, placeholder in made.commands.items():
        assert made.get_command(None, name).help.partition("\n")[0] == placeholder.help
    with pytest.raises(SystemExit):
        main(arguments)
    said = capsys.readouterr().out
    assert all(f"\n  {name} " in said for name in made.commands)


def test_help_imports_nothing_heavy() -> None:
    script = (
        "import sys\nfrom paceline.cli.main import main\n"
        "try: main(['--help'])\nfinally: print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    imported = set(done.stdout.split())
    assert "paceline.cli.main" in imported
    assert not imported & {
        "paceline.cli.commands.play",
        "torch",
        "httpx",
        "fastapi",
        "rich",
        "tokenizers",
        "msgspec",
        "zmq",
    }


def test_without_typer_the_way_out_is_told() -> None:
    script = LIGHTLY.replace('"torch"', '"typer"')
    done = subprocess.run(
        [sys.executable, "-c", script, "play"],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "play ends with 1\n"
    assert done.stderr == "paceline: the command line needs typer: pip install 'paceline[serve]'\n"


# -- completion -------------------------------------------------------------


COMPLETING = """
import os, sys
os.environ["_PACELINE_COMPLETE"] = "complete_bash"
from paceline.cli.main import main
for line in sys.argv[1:]:
    os.environ |= {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
    assert main() == 0
    print("--")
print(*sys.modules)
"""


def test_a_shell_completes_commands_options_and_values_without_heavy_imports() -> None:
    lines = ["paceline comp", "paceline bench ", "paceline serve --max-num-s"]
    lines += ["paceline serve --log-format ", "paceline pull smollm2-3"]
    done = subprocess.run(
        [sys.executable, "-c", COMPLETING, *lines],
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    *answers, imported = [answer.split() for answer in done.stdout.split("--\n")]
    assert answers[0] == ["complete", "compare"]
    assert answers[1] == ["serve", "throughput", "latency"]
    assert answers[2] == ["--max-num-seqs"]
    assert answers[3] == ["text", "json"]
    assert answers[4] == ["smollm2-360m"]
    assert "paceline.cli.commands.serve" in imported
    assert not {"torch", "fastapi", "httpx", "huggingface_hub", "rich"} & set(imported)


def test_completion_can_be_installed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "--install-completion" in capsys.readouterr().out


# -- as a process -----------------------------------------------------------


def test_output_to_a_pipe_is_plain_and_printed_once() -> None:
    done = ran("play")
    assert done.returncode == 0
    assert done.stderr == ""
    assert "\x1b" not in done.stdout
    assert done.stdout.count("paceline play: basics") == 1


def test_letters_that_cannot_be_written_are_replaced() -> None:
    done = ran("play", PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    assert done.stdout.isascii()
    assert ">48 >24" in done.stdout


NAMES = """{"about": "caf\\u00e9", "requests": [
    {"id": "\\u65e5\\u672c", "prompt": [1, 2, 3]}, {"id": "e\\u0301", "prompt": [4, 5]}]}"""


@pytest.mark.parametrize("more", [[], ["--ascii"]])
def test_names_that_cannot_be_written_have_question_marks(more: list[str]) -> None:
    """As many as their letters take on a screen, so that columns stay below each other."""
    done = ran("play", "-", *more, stdin=NAMES, PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.isascii()
    assert "\ncaf?\n" in done.stdout
    lines = [line[:20] for line in done.stdout.splitlines()[4:7]]
    assert lines == [
        "step           1   2",
        "????    3+16  >3  =1",
        "e       2+16  >2  =1",
    ]


@posix_only
def test_the_animation_can_write_such_names_too(tmp_path: Path) -> None:
    (tmp_path / "w.json").write_text(NAMES)
    terminal = Terminal("play", str(tmp_path / "w.json"), "--delay", "0", PYTHONIOENCODING="ascii")
    assert terminal.end() == 0
    assert "????" in terminal.seen


def test_a_workload_from_standard_input() -> None:
    done = ran("play", "-", stdin='{"requests": [{"id": "a", "prompt": [1, 2, 3]}]}')
    assert done.returncode == 0
    assert "a joins: 3 tokens to compute" in done.stdout


def test_a_mistake_is_no_traceback() -> None:
    done = ran("play", "-", stdin='{"requests": [{"id": "a", "prompt": [1], "colour": 3}]}')
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == ("paceline play: error: -: requests[0]: has an unknown field 'colour'\n")


def test_a_recording_of_more_blocks_than_a_replay_takes_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "large"
    path.write_bytes(Preamble.of(Config.of(num_blocks=2**31 - 1)).encoded())
    assert main(["replay", str(path)]) == 2
    assert "a replay takes at most 16,777,216" in capsys.readouterr().err


def test_a_lack_of_memory_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(options: ListOptions) -> int:
        """List the models on this machine."""
        raise MemoryError

    monkeypatch.setattr("paceline.cli.commands.list.run", run)
    assert main(["list"]) == 1
    assert capsys.readouterr().err.startswith("paceline: out of memory: lower max_num_seqs")


@posix_only
@pytest.mark.parametrize("arguments", [["play"], ["play", "--json"]])
def test_a_reader_that_goes_away_is_no_error(arguments: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [*COMMAND, *arguments],
        env=environment(),
        stdout=writer,
        stderr=subprocess.PIPE,
        timeout=60,
        check=False,
    )
    os.close(writer)
    assert done.returncode == 141
    assert done.stderr == b""


INTERRUPTED_IMPORT = """
import sys

class Interrupt:
    wanted = sys.argv[1]
    def find_spec(self, name, path=None, target=None):
        if name == self.wanted:
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupt())
from paceline.cli.main import main
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.parametrize(
    ("module", "words"),
    [("typer", ["list"]), ("numpy", ["play"]), ("torch", ["complete", "x"])],
)
def test_an_interrupt_during_an_import_is_no_traceback(module: str, words: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_IMPORT, module, *words],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


# -- in a terminal ----------------------------------------------------------


@posix_only
def test_a_terminal_gets_an_animation_and_then_the_whole_picture() -> None:
    terminal = Terminal("play", "--delay", "0")
    assert terminal.end() == 0
    animation, _, rest = terminal.seen.partition(FROM_OTHER_SCREEN)
    assert animation.startswith(TO_OTHER_SCREEN)
    assert animation.count("\x1b[H") == 30
    assert COLOUR.search(animation)
    assert "paceline play: basics" in rest
    assert "30 steps, 365 tokens computed" in rest
    assert "\x1b[H" not in rest


@posix_only
@pytest.mark.parametrize(("arguments", "more"), [(["--no-color"], {}), ([], {"NO_COLOR": "1"})])
def test_a_terminal_without_colour_is_animated_all_the_same(
    arguments: list[str], more: dict[str, str]
) -> None:
    terminal = Terminal("play", "--delay", "0", *arguments, **more)
    assert terminal.end() == 0
    assert terminal.seen.count("\x1b[H") == 30
    assert not COLOUR.search(terminal.seen)


@posix_only
@pytest.mark.parametrize(("arguments", "more"), [(["--fast"], {}), ([], {"TERM": "dumb"})])
def test_a_terminal_can_have_the_picture_at_once(
    arguments: list[str], more: dict[str, str]
) -> None:
    terminal = Terminal("play", *arguments, **more)
    assert terminal.end() == 0
    assert TO_OTHER_SCREEN not in terminal.seen
    assert bool(COLOUR.search(terminal.seen)) == (not more)


@posix_only
def test_step_waits_for_enter() -> None:
    terminal = Terminal("play", "--step", "--no-color")
    terminal.read_until("step 1  ")
    terminal.read_for(0.3)
    assert "step 2  " not in terminal.seen
    terminal.type("\n")
    terminal.read_until("step 2  ")
    terminal.type("\n" * 40)
    assert terminal.end() == 0


@posix_only
def test_an_interrupt_restores_the_screen_and_leaves_the_picture() -> None:
    terminal = Terminal("play", "--delay", "60")
    terminal.read_until("step 1 ")
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.end() == 130
    picture = COLOUR.sub("", terminal.seen.partition(FROM_OTHER_SCREEN)[2])
    assert "paceline play: basics" in picture
    assert picture.endswith("\r\nstopped after 1 step; interrupted\r\n")
    assert "Traceback" not in terminal.seen


def test_characters_that_the_output_cannot_encode_are_question_marks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(written, "latin-1", write_through=True))
    warn_of.cache_clear()
    accept_any_encoding()
    print("é 中文 é")
    print("中")
    assert written.getvalue() == b"\xe9 ?? \xe9\n?\n"
    said = capsys.readouterr().err
    assert said.count("standard output is latin-1, which lacks some characters") == 1
    assert "PYTHONIOENCODING=utf-8" in said
