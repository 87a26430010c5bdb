"""`paceline play`: real runs on the built-in workloads and on files."""

import json
import re
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paceline.cli.main import main
from paceline.testing.loop import SimulatedTurn
from paceline.viewer.play.history import History, Kind
from paceline.viewer.play.palette import MARKS, Palette
from paceline.viewer.play.picture import picture
from paceline.viewer.play.simulation import Stage
from paceline.viewer.play.workload_file import build, built_in, built_in_names

WORKLOADS = built_in_names()
DEPTHS = [1, 2, 3]
WAITING = (Kind.WAITING, Kind.PREEMPTED, Kind.SWAPPED, Kind.ON_HOST)
NUMBERED = "".join(mark.symbol for mark in MARKS.values())

Write = Callable[..., str]


@pytest.fixture
def workload(tmp_path: Path) -> Write:
    """Writes a workload file; returns its path."""

    def write(*requests: dict[str, Any], **top: Any) -> str:
        path = tmp_path / "w.json"
        path.write_text(json.dumps({"requests": requests, **top}))
        return str(path)

    return write


def played(content: Any, depth: int = 1, **settings: Any) -> tuple[Stage, list[SimulatedTurn]]:
    stage = Stage(build(content, "test", settings), depth)
    turns: list[SimulatedTurn] = []
    for turn in stage.turns(1000):
        stage.scheduler.check()
        turns.append(turn)
    assert stage.over
    return stage, turns


def played_built_in(name: str, depth: int = 1) -> tuple[Stage, list[SimulatedTurn]]:
    return played(json.loads(built_in(name)), depth)


def looks(history: History, name: str) -> str:
    """One letter per step from arrival to the end."""
    return "".join(MARKS[cell.look].symbol for cell in history.cells(name))


def request(name: str, tokens: int = 8, **more: Any) -> dict[str, Any]:
    return {"id": name, "prompt_tokens": tokens, **more}


# -- every built-in workload, at several depths -----------------------------


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("name", WORKLOADS)
def test_everybody_ends(name: str, depth: int) -> None:
    stage, _ = played_built_in(name, depth)
    history = stage.history
    assert history.ends.keys() == {one.id for one in history.asked}
    for one in history.asked:
        if history.ends[one.id].how == "length" and one.width == 1:
            assert history.yielded[one.id] == one.most
    assert stage.scheduler.usage == 0


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("name", WORKLOADS)
def test_cells_are_the_tokens_of_the_plans(name: str, depth: int) -> None:
    stage, turns = played_built_in(name, depth)
    assert len(turns) == len(stage.history.columns)
    for turn, column in zip(turns, stage.history.columns, strict=True):
        plan = turn.plan.to_dict()
        assert column.step == plan["step"]
        assert column.total == plan["total"]
        firsts = {f"0_{one.id}": one.id for one in stage.history.asked if one.width > 1}
        cells = {name: cell.tokens for name, cell in column.cells.items() if cell.tokens}
        assert cells == {firsts.get(name, name): count for name, count in plan["tokens"].items()}
        for preempted in plan["preempted"]:
            kind = column.cells[preempted].kind
            assert kind in (Kind.PREEMPTED, Kind.SWAPPED, Kind.AGAIN)


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("name", WORKLOADS)
def test_the_numbers_in_the_picture_add_up(name: str, depth: int) -> None:
    stage, turns = played_built_in(name, depth)
    drawn = picture(stage.history, Palette(colour=False, unicode=True), 100)
    names = tuple(f"{one.name} " for one in stage.history.lines)
    rows = [line for line in drawn if line.startswith(names)]
    cells = [int(n) for line in rows for n in re.findall(rf"[{NUMBERED}](\d+)", line)]
    totals = [int(n) for line in drawn if line.startswith("tokens") for n in line.split()[1:]]
    assert sum(cells) == sum(totals) == sum(turn.plan.total for turn in turns)


@pytest.mark.parametrize("name", WORKLOADS)
def test_tokens_do_not_depend_on_the_schedule(name: str) -> None:
    def outputs(depth: int, **settings: Any) -> dict[str, list[int]]:
        stage, turns = played(json.loads(built_in(name)), depth, **settings)
        told: dict[str, list[int]] = defaultdict(list)
        for turn in turns:
            for label, output in (turn.outputs.to_dict() if turn.outputs else {}).items():
                told[label] += output["tokens"]
                told[label] += [token for best in output.get("choices", []) for token in best]
        aborted = [r for r, end in stage.history.ends.items() if end.how == "abort"]
        return {request_id: new for request_id, new in told.items() if request_id not in aborted}

    expected = outputs(1)
    assert outputs(3) == expected
    assert outputs(1, num_speculative_tokens=0) == expected
    assert outputs(2, enable_prefix_caching=False) == expected
    assert outputs(2, discipline="prefill_first") == expected
    assert outputs(1, preemption_mode="swap", swap_space=50) == expected


@pytest.mark.parametrize("name", WORKLOADS)
def test_levels_add_up_to_the_pool(name: str) -> None:
    stage, _ = played_built_in(name)
    for column in stage.history.columns:
        levels = column.levels
        assert levels.total == stage.history.rules.blocks
        assert min(levels.shared, levels.held, levels.cached, levels.blank) >= 0
    assert stage.history.columns[-1].levels.cached or name == "pressure"
    assert stage.history.columns[-1].levels.host == 0


@pytest.mark.parametrize("name", WORKLOADS)
def test_whoever_waits_has_a_reason(name: str) -> None:
    stage, _ = played_built_in(name)
    for column in stage.history.columns:
        without = [cell.kind for cell in column.cells.values()]
        waiting = any(kind in without for kind in WAITING)
        assert (column.blocked is not None) == waiting


# -- what each built-in is there to show ------------------------------------


def test_basics_shows_a_bit_of_everything() -> None:
    stage, turns = played_built_in("basics")
    history = stage.history
    assert 25 <= len(turns) <= 40
    assert 6 <= len(history.asked) <= 9
    assert looks(history, "ada").startswith("▶▶•")
    assert looks(history, "eve").startswith("▶•")
    assert re.search("✗·+↻", looks(history, "eve"))
    notes = [note.text for column in history.columns for note in column.notes]
    assert any("computed in this very step" in text for text in notes)
    assert any(
        len({c.kind for c in column.cells.values() if c.tokens}) > 1 for column in history.columns
    )
    assert {end.how for end in history.ends.values()} == {"length", "stop"}


def test_prefix_shares_within_a_step_and_not_across_salts() -> None:
    history = played_built_in("prefix")[0].history
    cached = {one.id: history.cached(one.id) for one in history.asked}
    assert cached["second"] == cached["third"] == cached["late"] == 40
    assert cached["salted"] == cached["lora"] == 0
    assert cached["half"] == 24
    assert cached["again"] == 40


def test_pressure_preempts_and_aborts() -> None:
    history = played_built_in("pressure")[0].history
    assert sum(history.preemptions.values()) >= 3
    assert history.ends["f"].how == "abort"
    assert looks(history, "f").endswith("†")


def test_priority_displaces_on_arrival() -> None:
    history = played_built_in("priority")[0].history
    assert history.waited_steps("urgent") == 0
    assert history.preemptions["batch-1"] == 1


def test_fair_serves_the_modest_before_the_backlog_of_the_greedy() -> None:
    fair = played_built_in("fair")[0].history
    fcfs = played(json.loads(built_in("fair")), policy="fcfs")[0].history
    assert fair.ends["modest-3"].step < fcfs.ends["modest-3"].step
    assert fair.waited_steps("modest-1") < fcfs.waited_steps("modest-1")


def test_chunked_never_stalls_those_who_decode() -> None:
    history = played_built_in("chunked")[0].history
    assert looks(history, "book").count("▶") == 10
    assert set(looks(history, "short-1")[1:-1]) == {"•"}
    assert looks(history, "form").startswith("zzzz▶")


def test_speculation_takes_fewer_steps() -> None:
    stage, _ = played_built_in("speculation")
    history = stage.history
    assert history.ends["drafted"].step < history.ends["plain"].step
    assert stage.scheduler.stats.accepted > 0
    assert "»" in looks(history, "drafted")
    assert "»" not in looks(history, "plain")


def requests_of(name: str) -> list[dict[str, Any]]:
    return json.loads(built_in(name))["requests"]


def test_prefill_first_stalls_those_who_decode_and_not_for_ever() -> None:
    assert requests_of("prefill-first") == requests_of("chunked")
    stage, turns = played_built_in("prefill-first")
    history = stage.history
    assert {turn.plan.kind for turn in turns} == {"prefill", "decode"}
    for column in history.columns:
        kinds = {cell.kind for cell in column.cells.values() if cell.tokens}
        assert kinds == ({Kind.PREFILL} if column.kind == "prefill" else {Kind.DECODE})
    stalls = [len(stall) for stall in re.findall("–+", looks(history, "short-1"))]
    assert max(stalls) == 5
    patient = played(json.loads(built_in("prefill-first")), max_wait=10)[0].history
    assert max(len(stall) for stall in re.findall("–+", looks(patient, "short-1"))) == 11
    assert history.ends["short-1"].step > played_built_in("chunked")[0].history.ends["short-1"].step


def test_swapping_keeps_the_work_until_the_host_is_full() -> None:
    assert requests_of("swapping") == requests_of("pressure")
    stage, _ = played_built_in("swapping")
    history = stage.history
    assert re.fullmatch("▶•+↓⌂+↑•+■", looks(history, "e"))
    assert re.fullmatch("▶•+↓⌂+↑•+■", looks(history, "d"))
    assert re.search("✗·+↻", looks(history, "c"))
    assert stage.scheduler.stats.swaps_refused == 1
    assert max(column.levels.host for column in history.columns) > 5
    plenty = played(json.loads(built_in("swapping")), swap_space=40)[0]
    assert plenty.scheduler.stats.resumed_queries == 0


def test_families_fork_share_and_wait_for_slots() -> None:
    stage, _ = played_built_in("families")
    history = stage.history
    assert {one.id: one.width for one in history.asked} == {
        "chat": 3,
        "plain": 1,
        "search": 3,
        "guess": 2,
    }
    assert looks(history, "chat").startswith("▶▶")
    assert [looks(history, f"{n}_chat")[0] for n in (1, 2)] == ["↳", "↳"]
    assert any("⇄" in looks(history, line) for line in ("search", "1_search", "2_search"))
    assert history.waited_steps("guess") > 0
    assert {end.how for end in history.ends.values()} == {"length", "stop"}
    assert history.yielded["chat"] == 12 + 5 + 8
    assert stage.scheduler.stats.copied_blocks > 0


# -- what a script can ask for ----------------------------------------------


def test_those_who_come_by_the_clock() -> None:
    requests = [request("a", max_tokens=2), request("b", arrive="1s", max_tokens=1)]
    history = played({"requests": requests})[0].history
    assert len(history.columns) == 3
    assert history.columns[2].time == 1.0


def test_a_stop_token_ends_a_request_early() -> None:
    history = played({"requests": [request("a", max_tokens=9, stop_at=3)]})[0].history
    assert (history.ends["a"].how, history.yielded["a"]) == ("stop", 3)


def test_work_beyond_a_stop_is_dropped_when_steps_are_planned_ahead() -> None:
    history = played({"requests": [request("a", max_tokens=9, stop_at=3)]}, depth=2)[0].history
    assert looks(history, "a") == "▶•■~"
    assert history.yielded["a"] == 3


def test_an_abort_drops_what_is_in_flight() -> None:
    history = played({"requests": [request("a", abort_at=4)]}, depth=2)[0].history
    assert looks(history, "a") == "▶•~†"
    assert history.ends["a"].how == "abort"


def test_an_abort_of_one_who_comes_late_by_the_clock() -> None:
    requests = [request("a", max_tokens=30), request("b", arrive="300ms", abort_at=2)]
    history = played({"requests": requests})[0].history
    assert looks(history, "b") == "†"


def test_a_park_that_ends_before_the_arrival_is_none() -> None:
    one = request("a", arrive="100ms", park={"for": "grammar", "until": 1}, max_tokens=1)
    assert looks(played({"requests": [one]})[0].history, "a") == "■"


def test_a_full_queue_refuses() -> None:
    requests = [request("a"), request("b")]
    content = {"settings": {"max_num_queued_reqs": 1}, "requests": requests}
    history = played(content)[0].history
    assert looks(history, "b") == "!"
    assert history.ends["b"].how == "refused"


@pytest.mark.parametrize("depth", DEPTHS)
def test_a_deadline_that_passed_in_the_queue_refuses(depth: int) -> None:
    content = {
        "settings": {"policy": "deadline", "refuse_late": True, "max_num_seqs": 1},
        "requests": [request("a", max_tokens=12), request("b", arrive=2, deadline="50ms")],
    }
    history = played(content, depth)[0].history
    assert looks(history, "b").endswith("·!")
    assert history.ends["b"].how == "timeout"
    notes = [note.text for note in history.column(history.ends["b"].step).notes]
    assert "b is refused: its deadline passed in the queue" in notes


def test_idle_steps_are_steps() -> None:
    history = played({"requests": [request("a", arrive=4, max_tokens=1)]})[0].history
    assert [column.total for column in history.columns] == [0, 0, 0, 8]


# -- the command ------------------------------------------------------------


def play(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["play", *arguments]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


@pytest.mark.parametrize("name", WORKLOADS)
def test_plain_output_has_everything_once(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = play(capsys, "--workload", name, "--width", "120")
    assert out.startswith(f"paceline play: {name}\n")
    assert "\x1b" not in out
    assert out.count("what happened, and what blocked admission") == 1
    assert out.count("cells   ") == 1
    assert "tokens computed" in out
    assert "not ended" not in out


def test_the_default_is_basics(capsys: pytest.CaptureFixture[str]) -> None:
    assert play(capsys) == play(capsys, "--workload", "basics", "--fast", "--no-color")


def test_the_same_run_draws_the_same_picture(capsys: pytest.CaptureFixture[str]) -> None:
    assert play(capsys, "--depth", "2") == play(capsys, "--depth", "2")


def test_options_outrank_the_workload(capsys: pytest.CaptureFixture[str]) -> None:
    out = play(capsys, "--set", "max_num_seqs=2", "--policy", "shortest", "--depth", "2")
    assert "policy shortest · 2 slots · 48 tokens a step" in out
    assert "planned up to 2 steps ahead" in out
    out = play(capsys, "--set", "enable_prefix_caching=false", "--set", "policy=priority")
    assert "prefix cache: 0 of 0 tokens found (0%)" in out
    assert "policy priority" in out


def test_explain_tells_a_life(capsys: pytest.CaptureFixture[str]) -> None:
    out = play(capsys, "--explain", "eve", "--explain", "ada")
    assert "'eve': 20 tokens of prompt, at most 12 new; finished: the text came to its end." in out
    assert "preempted in step 11" in out
    assert out.index("'eve': ") < out.index("'ada': ")


def test_a_request_that_is_not_here_takes_nothing_from_the_picture(
    capsys: pytest.CaptureFixture[str],
) -> None:
    whole = play(capsys, "--max-steps", "1")
    assert play(capsys, "--max-steps", "1", "--explain", "hal") == (
        f"{whole}\n'hal': not submitted yet.\n"
    )
    forgetful = ["--set", "journal_requests=1", "--json", "--explain", "ada"]
    last = json.loads(play(capsys, *forgetful).splitlines()[-1])
    told = "'ada': ended (length in step 17), and not remembered."
    assert last == {"explain": {"ada": told}}


def test_json_has_one_line_per_step(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [json.loads(line) for line in play(capsys, "--json").splitlines()]
    assert [line["step"] for line in lines] == list(range(1, len(lines) + 1))
    assert [line["committed"] for line in lines] == [line["step"] for line in lines]
    assert all(line["plan"]["step"] == line["step"] for line in lines)
    assert lines[0]["plan"]["tokens"] == {"ada": 48}
    assert lines[1]["outputs"]["ada"]["finish"] is None
    assert lines[7]["blocked"] == "finn is next, but all 5 slots are taken"
    assert lines[-1]["snapshot"]["free_blocks"] == lines[-1]["snapshot"]["total_blocks"]


def test_json_tells_kinds_swaps_and_children(capsys: pytest.CaptureFixture[str]) -> None:
    def lines(workload: str) -> list[dict[str, Any]]:
        out = play(capsys, "--json", "--workload", workload)
        return [json.loads(line) for line in out.splitlines()]

    assert [line["kind"] for line in lines("prefill-first")[:3]] == ["prefill", "decode", "prefill"]
    assert {line["kind"] for line in lines("swapping")} == {"mixed"}
    assert sum(len(line["plan"]["swap_out"]) for line in lines("swapping")) == 8
    families = lines("families")
    assert families[1]["plan"]["tokens"] == {"0_chat": 1, "1_chat": 1, "2_chat": 1}
    assert len(families[1]["plan"]["copies"]) == 2
    assert families[1]["outputs"].keys() == {"0_chat", "1_chat", "2_chat"}
    (search,) = [line["outputs"]["search"] for line in families if "search" in line["outputs"]]
    assert [len(tokens) for tokens in search["choices"]] == [6, 10]


def test_the_heading_names_the_discipline_and_the_host(capsys: pytest.CaptureFixture[str]) -> None:
    out = play(capsys, "--workload", "prefill-first")
    assert "\ndiscipline prefill_first · policy fcfs" in out
    assert " on the host" not in out
    out = play(capsys, "--workload", "swapping")
    assert "20 blocks of 4 · 10 more on the host\n" in out
    assert "discipline" not in out
    assert "host: 8 blocks swapped out, 8 back in; no room for 1 preemption" in out


def test_the_totals_count_forks_and_copies(capsys: pytest.CaptureFixture[str]) -> None:
    out = play(capsys, "--workload", "families")
    assert f"{12 + 5 + 8 + 12 + 6 + 10 + 6} generated" in out
    assert "sequence groups: 14 forks, 12 blocks copied" in out
    assert "families" not in play(capsys, "--workload", "basics")


def test_disciplines_can_be_compared_on_any_workload(capsys: pytest.CaptureFixture[str]) -> None:
    settings = ["--set", "discipline=prefill_first", "--set", "preemption_mode=auto"]
    out = play(capsys, *settings, "--set", "swap_space=12", "--width", "200")
    assert "\nkind " in out
    assert "\nhost " in out


def test_explain_tells_the_life_of_a_family(capsys: pytest.CaptureFixture[str]) -> None:
    out = play(capsys, "--workload", "families", "--explain", "search")
    assert "forked into 3 sequences that share the prompt." in out
    out = play(capsys, "--workload", "swapping", "--explain", "d")
    assert "swapped out: 4 blocks copied to the host." in out


@pytest.mark.parametrize("name", WORKLOADS)
def test_ascii_output_is_ascii(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert play(capsys, "--workload", name, "--ascii").isascii()


def test_json_at_depth_tells_which_step_came_back(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [json.loads(line) for line in play(capsys, "--json", "--depth", "2").splitlines()]
    assert [line["committed"] for line in lines[:3]] == [None, 1, 2]
    tokens = [len(one["tokens"]) for line in lines for one in line["outputs"].values()]
    assert sum(tokens) == 104


def test_json_can_explain_too(capsys: pytest.CaptureFixture[str]) -> None:
    last = json.loads(play(capsys, "--json", "--explain", "bob").splitlines()[-1])
    assert last["explain"]["bob"].startswith("'bob': 38 tokens")


def test_a_run_can_be_cut_short(workload: Write, capsys: pytest.CaptureFixture[str]) -> None:
    out = play(capsys, workload(request("a", arrive=50)), "--max-steps", "20")
    assert "stopped after 20 steps" in out
    assert "not ended" in out


def test_yaml_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("yaml")
    path = tmp_path / "w.yml"
    path.write_text("requests:\n- {id: a, prompt_tokens: 9, max_tokens: 3}\n")
    assert "a  " in play(capsys, str(path))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--set", "max_num_seqs=x"], "--set max_num_seqs: must be a whole number, not 'x'"),
        (["--set", "nonsense=1"], "unknown setting 'nonsense'"),
        (["--policy", "best"], "no policy 'best'"),
        (["--explain", "nobody"], "--explain: no request 'nobody' in basics: ada, bob"),
        (["nowhere.json"], "nowhere.json: no such file; built-in workloads, with --workload "),
        (["nowhere.json"], ", pressure, "),
        (["pressur"], "pressur: no such file; did you mean --workload pressure?"),
    ],
)
def test_mistakes_are_told_on_one_line(
    arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["play", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("paceline play: error: ")
    assert expected in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["--set", "max_num_seqs"],
        ["--set", "=3"],
        ["--depth", "0"],
        ["--depth", "two"],
        ["--delay", "nan"],
        ["--delay", "-1"],
        ["--width", "5"],
        ["--workload", "nothing"],
        ["w.json", "--workload", "basics"],
        ["--unheard-of"],
    ],
)
def test_wrong_options_end_with_status_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["play", *arguments])
    assert caught.value.code == 2
    assert "Usage: paceline" in capsys.readouterr().err


# -- the guide --------------------------------------------------------------

GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "play.md"


def block(language: str) -> str:
    """The first block of code in a language."""
    found = re.search(rf"```{language}\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    return found[1]


def test_the_picture_in_the_guide_is_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert block("text") in play(capsys, "--width", "100")


def shown() -> list[tuple[str, str]]:
    """The commands of the guide that a picture follows, and that picture."""
    text = GUIDE.read_text(encoding="utf-8")
    return re.findall(r"```bash\npaceline (play [^\n]*)\n```\n\n```text\n(.*?)```", text, re.DOTALL)


def test_there_is_a_picture_of_each_way_to_schedule() -> None:
    assert [command for command, _ in shown()] == [
        f"play --workload {name}" for name in ("prefill-first", "swapping", "families")
    ]


@pytest.mark.parametrize(("command", "drawing"), shown())
def test_a_picture_in_the_guide_is_what_its_command_prints(
    command: str, drawing: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = play(capsys, *command.split()[1:], "--width", "100")
    parts = drawing.removesuffix("\n").split("\n…\n")
    assert len(parts) > 1
    for part in parts:
        _, found, rest = out.partition(f"\n{part}\n")
        assert found, f"not printed, or not in this order:\n{part}"
        out = f"\n{rest}"


def test_what_the_guide_says_of_families_in_little_memory() -> None:
    settings = {"num_blocks": 15, "preemption_mode": "swap", "swap_space": 12}
    content = json.loads(built_in("families"))
    history = played(content, **settings)[0].history
    assert all("↓↑" in looks(history, line) for line in ("search", "1_search", "2_search"))
    assert history.yielded == played(content)[0].history.yielded
    text = GUIDE.read_text(encoding="utf-8")
    assert " ".join(f"--set {name}={value}" for name, value in settings.items()) in text


def test_the_guide_explains_every_sign() -> None:
    text = GUIDE.read_text(encoding="utf-8")
    explained = "".join(re.findall(r"^\| (`.*?) \|", text, re.MULTILINE))
    assert [mark.meaning for mark in MARKS.values() if f"`{mark.symbol}" not in explained] == []


def test_the_workload_in_the_guide_can_be_played(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("yaml")
    path = tmp_path / "guide.yaml"
    path.write_text(block("yaml"))
    out = play(capsys, str(path))
    assert "chat-2 joins: 32 of its 44 tokens are in the cache" in out
    assert "report is woken: grammar is there" in out


def test_the_guide_names_every_built_in_workload() -> None:
    text = GUIDE.read_text(encoding="utf-8")
    assert [name for name in WORKLOADS if f"| `{name}` |" not in text] == []


def test_help_says_that_a_policy_may_be_a_dotted_path(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["play", "--help"])
    assert "dotted path to a class" in " ".join(capsys.readouterr().out.split())
