"""What is read from a running scheduler: every cell and note agrees with the plans."""

import json
import re
from random import Random
from typing import Any

import pytest

from paceline.core.request import child_label
from paceline.core.settings.config import Config
from paceline.sched.admission.entrants import Entrant
from paceline.sched.admission.gates import AdmissionGate
from paceline.sched.admission.step_room import Shut, StepRoom
from paceline.sched.disciplines.unified import Unified
from paceline.sched.slots import SlotTable
from paceline.sched.state import SchedulerState
from paceline.testing.loop import SimulatedTurn
from paceline.viewer.play.history import Blocked, History, Kind, PlayedRequest, line_of
from paceline.viewer.play.palette import MARKS, Palette
from paceline.viewer.play.picture import frame, picture
from paceline.viewer.play.plan_notes import ScriptError
from paceline.viewer.play.simulation import Stage
from paceline.viewer.play.summary import story, summary
from paceline.viewer.play.synthetic_model import BLOCK_S, STEP_S
from paceline.viewer.play.workload_file import build, built_in

ASCII = Palette(colour=False, unicode=False)
SMALL = {"num_blocks": 64, "block_size": 4, "max_num_seqs": 8, "max_num_batched_tokens": 64}
TIGHT = {"num_blocks": 9, "block_size": 4, "max_num_seqs": 4, "max_num_batched_tokens": 32}
SEEDS = 40  # of random workloads
SWAP = {"preemption_mode": "swap", "swap_space": 20}


def request(name: str, tokens: int = 8, **more: Any) -> dict[str, Any]:
    return {"id": name, "prompt_tokens": tokens, "max_tokens": 6, **more}


def played(*requests: dict[str, Any], depth: int = 1, seed: int = 0, **settings: Any) -> Stage:
    """A finished run whose every step was compared with its plan."""
    content = {"requests": list(requests), "settings": settings, "seed": seed}
    stage = Stage(build(content, "test", {}), depth)
    for turn in stage.turns(2000):
        stage.scheduler.check()
        check_column(stage.history, turn)
    assert stage.over
    return stage


def check_column(history: History, turn: SimulatedTurn) -> None:
    column, plan, rules = history.columns[-1], turn.plan, history.rules
    lines = {
        child_label(one.id, child): line_of(one.id, child)
        for one in history.asked
        for child in (range(one.width) if one.width > 1 else [-1])
    }
    tokens = {lines[label]: count for label, count in plan.to_dict()["tokens"].items()}
    assert {line: cell.tokens for line, cell in column.cells.items() if cell.tokens} == tokens
    moves = column.moves
    assert (moves.copied, moves.out, moves.back) == tuple(
        len(pairs) for pairs in (plan.copies, plan.swap_out, plan.swap_in)
    )
    levels = column.levels
    assert levels.total == rules.blocks
    assert min(levels.shared, levels.held, levels.cached, levels.blank, levels.host) >= 0
    assert levels.host <= rules.host_blocks


def looks(stage: Stage, line: str) -> str:
    """One letter per step from arrival to the end."""
    return "".join(MARKS[cell.look].symbol for cell in stage.history.cells(line))


def notes(stage: Stage) -> list[str]:
    return [note.text for column in stage.history.columns for note in column.notes]


# -- what an arrival finds --------------------------------------------------


def test_a_note_says_what_is_loaded_from_host_memory() -> None:
    """`victim` leaves its blocks on the host, and `large` takes all of the device. `short` loads
    one block and computes the next, and `new` loads the third."""
    text = {"name": "text", "tokens": 12}
    stage = played(
        request("old", max_tokens=9),
        request("victim", 12, max_tokens=9, prefix=text, abort_at=7),
        request("large", 22, max_tokens=2, arrive=8),
        request("short", prefix={**text, "tokens": 8}, max_tokens=1, arrive=16),
        request("new", 16, prefix=text, arrive=18),
        **{**TIGHT, **SWAP, "num_blocks": 6, "max_num_seqs": 2},
    )
    assert [note for note in notes(stage) if "host memory" in note] == [
        "short joins: 4 of its 8 tokens are loaded from host memory",
        "new joins: 12 of its 16 tokens are in the cache, 4 of them loaded from host memory",
    ]


# -- families ---------------------------------------------------------------


def test_sequences_appear_when_they_fork() -> None:
    stage = played(request("a", 10, n=3, stop_at=[9, 2, 4]), **SMALL)
    assert looks(stage, "a") == "▶▶••••■"
    assert looks(stage, "1_a") == "↳■"
    assert looks(stage, "2_a") == "↳••■"
    assert [column.cells.keys() for column in stage.history.columns[:2]] == [
        {"a"},
        {"a", "1_a", "2_a"},
    ]
    told = notes(stage)
    assert told[0] == "a joins, for 3 sequences: 10 tokens to compute"
    assert told[1] == "a forks into 3 sequences that share 9 tokens; 2 blocks copied"
    assert told[2:] == [
        "a/1 ends (stop) after 2 tokens",
        "a/2 ends (stop) after 4 tokens",
        "a/0 ends (length) after 6 tokens",
    ]
    assert stage.history.yielded["a"] == 12
    assert stage.history.columns[1].levels.shared == 2


def test_a_fork_where_a_block_ends_copies_nothing() -> None:
    stage = played(request("a", 9, n=2), **SMALL)
    assert "a forks into 2 sequences that share 8 tokens; no block is copied" in notes(stage)


def test_each_family_is_told_its_own_copies() -> None:
    stage = played(request("a", 10, n=3), request("b", 10, n=2), **SMALL)
    told = [note.text for note in stage.history.column(2).notes]
    assert told == [
        "a forks into 3 sequences that share 9 tokens; 2 blocks copied",
        "b forks into 2 sequences that share 9 tokens; 1 block copied",
    ]


def test_a_first_fork_is_one_also_after_a_preemption() -> None:
    content = json.loads(built_in("families"))
    stage = Stage(build(content, "families", {"num_blocks": 16}))
    assert list(stage.turns(500))
    assert looks(stage, "search").startswith("▶✗")
    assert [looks(stage, f"{n}_search")[0] for n in (1, 2)] == ["↳", "↳"]
    assert any(text.startswith("search forks into 3 sequences") for text in notes(stage))


def test_beams_that_wait_for_others_end_with_them() -> None:
    settings = {**SMALL, "max_num_batched_tokens": 8, "long_prefill_token_threshold": 6}
    stage = played(request("a", 60), request("b", 2, beam_width=3, max_tokens=1), **settings)
    assert [looks(stage, line) for line in ("b", "1_b", "2_b")] == ["▶▶■", "↳■", "↳■"]
    assert [stage.history.cells(line)[-1].tokens for line in ("b", "1_b", "2_b")] == [0, 0, 1]


def test_the_best_are_told_at_the_end() -> None:
    stage = played(request("a", 10, best_of=2, stop_at=[9, 2]), **SMALL)
    assert looks(stage, "1_a") == "↳■"
    told = notes(stage)
    assert "a/1 ends; the best are returned when all have ended" in told
    assert told[-1].startswith("a ends (")
    assert "; the best: " in told[-1]
    assert stage.history.yielded["a"] in (2, 6)


def test_beams_that_are_replaced_have_a_sign_and_an_origin() -> None:
    stage = played(request("a", 10, n=2, beam_width=3), **SMALL)
    assert looks(stage, "1_a").startswith("↳⇄")
    assert looks(stage, "2_a").startswith("↳⇄")
    told = notes(stage)
    assert told[2] == "a: /1 and /2 go on from /0; 2 blocks copied"
    assert "; the 2 best: 6 tokens (score" in told[-1]
    assert [looks(stage, line)[-1] for line in ("a", "1_a", "2_a")] == ["■"] * 3
    assert stage.history.yielded["a"] == 12


def origins(text: str) -> dict[int, int]:
    """Which beam goes on from which, as a note has it."""
    found = re.findall(r"((?:/\d+(?:, | and )?)+) go(?:es)? on from /(\d+)", text)
    return {int(beam): int(origin) for beams, origin in found for beam in re.findall(r"\d+", beams)}


def test_beams_go_on_from_those_whose_tokens_they_have() -> None:
    stage = Stage(build({"requests": [request("a", 10, beam_width=4)]}, "test", {}))
    at = stage.scheduler.state
    before: list[dict[int, list[int]]] = [{}]  # tokens of each beam after each turn
    replaced = 0
    for turn in stage.turns(50):
        told = [n.text for n in stage.history.columns[-1].notes if n.kind is Kind.REPLACED]
        for beam, origin in origins("".join(told)).items():
            (new,) = [new for new in turn.plan.admitted if new.request.id == f"{beam}_a"]
            assert new.tokens.tolist() == before[-2][origin]
            replaced += 1
        residents = [at.table.sequence(slot) for slot in at.table.order.tolist()]
        before.append(
            {
                one.child: at.table.tokens[one.slot, : at.table.known[one.slot]].tolist()
                for one in residents
            }
        )
    assert replaced == sum(
        cell.kind is Kind.REPLACED for c in stage.history.columns for cell in c.cells.values()
    )
    assert replaced > 4


def test_an_abort_ends_all_lines_that_were_there() -> None:
    stage = played(request("a", 10, n=3, stop_at=[9, 2, 9], abort_at=4), **SMALL)
    assert looks(stage, "a") == "▶▶•†"
    assert looks(stage, "2_a") == "↳•†"
    assert looks(stage, "1_a") == "↳■"


def test_a_family_that_waits_says_how_many_slots_it_lacks() -> None:
    stage = played(request("a"), request("b", n=4), **{**SMALL, "max_num_seqs": 4})
    blocked = stage.history.columns[0].blocked
    assert blocked is not None
    assert blocked.text == "b is next, but 1 slot short for all its sequences"


def test_a_family_is_preempted_as_a_whole_and_forks_again() -> None:
    requests = [request("a", 12, max_tokens=14), request("b", 5, n=2, max_tokens=8)]
    stage = played(*requests, **TIGHT)
    assert "✗" in looks(stage, "b")
    for column in stage.history.columns:
        both = {column.cells[line].kind for line in ("b", "1_b") if line in column.cells}
        assert Kind.PREEMPTED not in both or len(both) == 1
    assert any(text.startswith("b forks again into 2 sequences") for text in notes(stage))
    assert "↻" in looks(stage, "1_b")


# -- swapping ---------------------------------------------------------------


def test_swapped_out_waiting_there_and_back() -> None:
    requests = [request("a", 12, max_tokens=12), request("b", 9, max_tokens=12)]
    stage = played(*requests, **TIGHT, **SWAP)
    history = stage.history
    assert looks(stage, "b") == "▶•••••••↓⌂⌂⌂↑••■"
    (step,) = [c.step for c in history.columns if c.moves.out]
    assert history.column(step).levels.host == history.column(step).moves.out
    assert history.columns[-1].levels.host == 0
    assert history.preemptions["b"] == 1
    assert history.waited_steps("b") == 4
    assert history.column(step).moves.out == 4
    told = notes(stage)
    assert "b is swapped out for want of 1 block for itself: 4 blocks to the host" in told
    assert any(text.startswith("b returns from the host: ") for text in told)


def test_no_room_on_the_host_is_told() -> None:
    requests = [request("a", 12, max_tokens=12), request("b", 9, max_tokens=12)]
    stage = played(*requests, **TIGHT, preemption_mode="swap", swap_space=1)
    assert "✗" in looks(stage, "b")
    assert "↓" not in looks(stage, "b")
    assert any("and not swapped out: no room on the host" in text for text in notes(stage))


@pytest.mark.parametrize("depth", [1, 2])
def test_a_step_may_copy_and_compute_nothing(depth: int) -> None:
    requests = [request("a", 15, max_tokens=12), request("b", 15, max_tokens=12)]
    stage = played(*requests, depth=depth, **{**TIGHT, "num_blocks": 8}, **SWAP)
    columns = stage.history.columns
    moving = [column for column in columns if column.moves.out and not column.total]
    assert len(moving) == 1
    assert moving[0].cells["a"].kind is Kind.IDLE
    assert moving[0].cells["b"].kind is Kind.SWAPPED
    if depth == 1:
        took = columns[moving[0].step].time - moving[0].time
        assert took == pytest.approx(STEP_S + moving[0].moves.out * BLOCK_S)


def test_a_family_is_swapped_as_a_whole() -> None:
    requests = [request("a", 12, max_tokens=14), request("b", 5, n=2, max_tokens=8)]
    stage = played(*requests, **TIGHT, **SWAP)
    for line in ("b", "1_b"):
        assert "↓" in looks(stage, line)
        assert "↑" in looks(stage, line)
    assert any("b returns from the host with 2 sequences: " in text for text in notes(stage))


# -- disciplines ------------------------------------------------------------


def test_every_step_of_prefill_first_has_a_kind() -> None:
    stage = played(
        request("a", 10), request("b", 10, arrive=3), discipline="prefill_first", **SMALL
    )
    assert [column.kind for column in stage.history.columns[:4]] == [
        "prefill",
        "decode",
        "prefill",
        "decode",
    ]
    assert looks(stage, "a") == "▶•–•••■"


def test_prompts_that_have_begun_are_the_reason_where_they_are() -> None:
    """Those on the host return in a step that decodes."""
    settings = {**SMALL, **SWAP, "num_blocks": 20, "max_num_batched_tokens": 16}
    stage = played(
        request("a", 14, max_tokens=18, priority=5),
        request("b", 10, max_tokens=20, priority=5),
        request("big", 70, arrive=4),
        discipline="prefill_first",
        policy="priority",
        reserve_full_prompt=False,
        **settings,
    )
    column = stage.history.column(8)
    assert (column.kind, column.blocked) == (
        "prefill",
        Blocked("b is next, but this step is for prompts that have begun", 8),
    )


class TwoAtATime(AdmissionGate):
    """At most two sequences are resident."""

    def __init__(self, table: SlotTable) -> None:
        self._table = table

    @classmethod
    def create(cls, config: Config, state: SchedulerState) -> "TwoAtATime":
        return cls(state.table)

    def shut(self, entrant: Entrant, room: StepRoom) -> Shut | None:
        return Shut("one of the two to end") if len(self._table.order) >= 2 else None


class InTwos(Unified):
    gates = (TwoAtATime, *Unified.gates)


def test_the_reason_of_another_gate_is_what_the_request_waits_for() -> None:
    requests = [request(name) for name in "abc"]
    stage = played(*requests, discipline=f"{__name__}.InTwos", **SMALL)
    blocked = stage.history.columns[0].blocked
    assert blocked is not None
    assert blocked.text == "c is next, but it waits for one of the two to end"


def test_a_unified_step_has_none() -> None:
    stage = played(request("a", 10), request("b", 10, arrive=3), **SMALL)
    assert {column.kind for column in stage.history.columns} == {""}


def test_what_does_not_fit_the_rest_of_a_step_is_said_to() -> None:
    settings = {**SMALL, "max_num_batched_tokens": 16}
    stage = played(request("a", 10), request("b", 10), discipline="prefill_first", **settings)
    blocked = stage.history.columns[0].blocked
    assert blocked is not None
    assert blocked.text == "b is next, but too large for the 6 tokens left in this step"


def test_blocks_that_are_short_may_be_more_or_fewer_later() -> None:
    stage = Stage(build(json.loads(built_in("swapping")), "swapping", {}))
    gates = {turn.plan.step: stage.scheduler.gate for turn in stage.turns(500)}
    later = gates[20]
    assert later is not None
    assert later.short == 5
    blocked = Blocked("c is next, but 4 blocks short", 19, varies=True)
    assert [stage.history.column(step).blocked for step in (19, 20)] == [blocked, blocked]
    told = "blocked: c is next, but 4 blocks short at first (until step 20)"
    assert any(line.endswith(told) for line in story(stage.history, ASCII, 200))


def test_slots_that_are_short_are_told_as_they_come_free() -> None:
    stage = played(
        request("a"), request("c", max_tokens=3), request("b", n=4), **{**SMALL, "max_num_seqs": 4}
    )
    told = dict.fromkeys(one.blocked for one in stage.history.columns if one.blocked)
    assert list(told) == [
        Blocked("b is next, but 2 slots short for all its sequences", 1),
        Blocked("b is next, but 1 slot short for all its sequences", 4),
    ]


# -- what is computed again -------------------------------------------------


def again(stage: Stage) -> dict[str, int]:
    """Tokens computed beyond those that each request had to compute once."""
    history = stage.history
    return {
        one.id: history.computed(one.id)
        + history.cached(one.id)
        - (one.prompt + history.yielded[one.id] - 1)
        for one in history.asked
        if history.ends[one.id].how in ("stop", "length")
    }


def test_what_was_never_computed_is_not_computed_again() -> None:
    """A prompt that is preempted in its middle has a part that nobody has computed yet."""
    requests = [request("a", 14, max_tokens=30), request("b", 10, max_tokens=20)]
    stage = played(
        *requests,
        request("big", 70, arrive=6, max_tokens=2),
        **{**SMALL, "num_blocks": 20, "max_num_batched_tokens": 16},
        reserve_full_prompt=False,
    )
    assert again(stage) == {"a": 0, "b": 0, "big": 22}
    assert stage.history.computed_again() == 22
    assert "2 preemptions; 22 tokens computed again" in summary(
        stage.history, stage.scheduler.stats, ASCII
    )


@pytest.mark.parametrize("name", ["basics", "pressure", "swapping", "priority"])
@pytest.mark.parametrize("caching", [True, False])
def test_what_is_computed_again_is_counted_with_and_without_a_cache(
    name: str, caching: bool
) -> None:
    content = json.loads(built_in(name))
    stage = Stage(build(content, name, {"enable_prefix_caching": caching}))
    assert list(stage.turns(500))
    assert stage.history.computed_again() == sum(again(stage).values()) > 0


def test_a_family_computes_again_what_each_had() -> None:
    requests = [request("a", 12, max_tokens=14), request("b", 5, n=2, max_tokens=8)]
    stage = played(*requests, **TIGHT, enable_prefix_caching=False)
    history = stage.history
    once = 12 + 14 - 1 + 5 + 8 - 1 + 8  # both compute the last token of the prompt
    assert history.preemptions == {"a": 0, "b": 1}
    computed = sum(column.total for column in history.columns)
    assert history.computed_again() == computed - once > 0


# -- anything at all --------------------------------------------------------


def random_request(random: Random, name: str) -> dict[str, Any]:
    one = request(name, random.randint(1, 30), arrive=random.randint(1, 10))
    one["max_tokens"] = random.randint(1, 10)
    family = random.choice([{}, {}, {"n": 3}, {"n": 1, "best_of": 3}, {"n": 2, "beam_width": 3}])
    one |= family
    if random.random() < 0.3:
        one["stop_at"] = random.randint(1, 8)
    if random.random() < 0.15:
        one["abort_at"] = one["arrive"] + random.randint(0, 10)
    return one


def random_settings(random: Random) -> dict[str, Any]:
    size = random.choice([2, 4])
    return {
        "block_size": size,
        "num_blocks": random.randint(40, 100) // size,
        "max_num_seqs": random.randint(4, 7),
        "max_num_batched_tokens": random.choice([8, 16, 48]),
        "discipline": random.choice(["unified", "prefill_first"]),
        "preemption_mode": random.choice(["recompute", "swap", "auto"]),
        "swap_space": random.choice([1, 10, 40]),
        "max_wait": random.choice([0.0, 0.05, 1.0]),
        "num_speculative_tokens": random.choice([0, 0, 2]),
    }


def told_to_clients(stage: Stage, turns: list[SimulatedTurn]) -> dict[str, Any]:
    """Tokens, finish and choices by label, of requests that ended by themselves."""
    told: dict[str, Any] = {}
    for turn in turns:
        for label, one in (turn.outputs.to_dict() if turn.outputs else {}).items():
            new, finish, best = told.get(label, ([], None, None))
            told[label] = (new + one["tokens"], one["finish"] or finish, one.get("choices") or best)
    whole = {name for name, end in stage.history.ends.items() if end.how in ("stop", "length")}
    return {label: one for label, one in told.items() if label.split("_")[-1] in whole}


def ran(content: dict[str, Any], depth: int, **overrides: Any) -> tuple[Stage, dict[str, Any]]:
    stage = Stage(build(content, "test", overrides), depth)
    turns: list[SimulatedTurn] = []
    for turn in stage.turns(2000):
        check_column(stage.history, turn)
        turns.append(turn)
    assert stage.over
    return stage, told_to_clients(stage, turns)


def check_ends(history: History, one: PlayedRequest) -> None:
    """Each line ends once, and if its request ended by itself, with its last result."""
    for line in one.lines:
        cells = history.cells(line.id)
        assert sum(cell.ended for cell in cells) <= 1
        counted = [cell for cell in cells if not cell.dropped and (cell.tokens or cell.ended)]
        if cells and history.ends[one.id].how in ("stop", "length"):
            assert counted[-1].ended


def random_workload(random: Random) -> dict[str, Any]:
    """One that can be played, in hardly more memory than that takes."""
    requests = [random_request(random, f"r{n}") for n in range(random.randint(2, 5))]
    settings = random_settings(random)
    content = {"requests": requests, "settings": settings, "seed": random.randint(0, 99)}
    while True:
        try:
            build(content, "test", {})
        except ScriptError:
            settings["num_blocks"] += 2
        else:
            return content


@pytest.mark.parametrize("seed", range(SEEDS))
def test_any_workload_can_be_watched(seed: int) -> None:
    random = Random(seed)
    content = random_workload(random)
    stage, told = ran(content, depth=random.randint(1, 4))
    history = stage.history
    assert history.ends.keys() == {one.id for one in history.asked}
    for one in history.asked:
        check_ends(history, one)
    for lines in (
        picture(history, ASCII, 100),
        frame(history, ASCII, 100, 40),
        story(history, ASCII, 100),
        summary(history, stage.scheduler.stats, ASCII),
    ):
        assert "\n".join(lines).isascii()
    plenty = {"num_blocks": 4000, "max_num_seqs": 40, "max_num_batched_tokens": 400}
    _, expected = ran(content, 1, **plenty, discipline="unified", preemption_mode="recompute")
    both = told.keys() & expected.keys()  # an abort may come too late in one of them
    assert {label: told[label] for label in both} == {label: expected[label] for label in both}


def test_such_workloads_show_what_there_is_to_see() -> None:
    seen: set[Kind] = set()
    for seed in range(SEEDS):
        stage = Stage(build(random_workload(Random(seed)), "test", {}))
        for _ in stage.turns(2000):
            pass
        columns = stage.history.columns
        seen |= {cell.look for column in columns for cell in column.cells.values()}
    assert set(Kind) - seen <= {Kind.PARKED, Kind.REFUSED, Kind.DROPPED, Kind.HIT}
