"""A recording replays to the same plans, and whatever is wrong with it is told."""

import json
import os
import re
import subprocess
import sys
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from paceline import PacelineError, Plan, Request, Scheduler, StepResult
from paceline.kv.pool import BlockPool
from paceline.sched import replay as replaying
from paceline.sched.policies.fcfs import Fcfs
from paceline.sched.recording import Recorder
from paceline.sched.records import FORMAT_NUMBER, MAGIC, Kind, RecordingError, record
from paceline.sched.replay import Ending, Reader, Replay

ROOT = Path(__file__).parents[2]
POLICIES = ("fcfs", "priority", "shortest", "deadline", "fair")
SEEDS = range(40)


def settings(r: Random) -> dict[str, Any]:
    slots, length, size = r.randint(1, 8), r.randint(12, 64), r.choice([1, 2, 4, 8])
    least = -(-length // size)
    return {
        "max_num_seqs": slots,
        "max_model_len": length,
        "block_size": size,
        "num_blocks": r.randint(least, least * 3),
        "max_num_batched_tokens": max(slots, r.choice([8, 16, 64])),
        "long_prefill_token_threshold": r.choice([0, 0, 5]),
        "enable_prefix_caching": r.random() < 0.8,
        "enable_kv_cache_events": r.random() < 0.3,
        "free_order": r.choice(["unsealed_first", "lru"]),
        "reserve_full_prompt": r.random() < 0.5,
        "watermark": r.choice([0.0, 0.2]),
        "max_num_queued_reqs": r.choice([3, 100]),
        "policy": r.choice(POLICIES),
        "victim": r.choice(["newest", "cheapest"]),
        "preempt_on_arrival": r.random() < 0.5,
        "refuse_late": r.random() < 0.5,
        "ageing_s": r.choice([2.0, float("inf")]),
        "tenant_weights": {"t1": 2.0},
        "num_speculative_tokens": r.choice([0, 0, 1, 3]),
        "speculation": r.choice(["fixed", "adaptive"]),
        "lookahead_slots": r.choice([0, 0, 2]),
    }


class Trouble:
    """A seeded run through a recorder: every call there is, in any order, some of them wrong."""

    def __init__(self, seed: int, path: Path, turns: int = 80, depth: int = 3) -> None:
        self.random = r = Random(seed)
        self.recorder = Recorder(Scheduler.create(**settings(r)), path)
        self.depth = r.randint(1, depth)
        self.now = 0.0
        self.ids: list[str] = []
        self.plans: list[dict[str, Any]] = []
        self.flight: deque[Plan] = deque()
        self.past: list[Plan] = []
        self.refused: Counter[str] = Counter()
        for _ in range(turns):
            self._turn()
        self._settle()

    def _turn(self) -> None:
        r, calls = self.random, self.recorder
        self.now += r.choice([0.0, 0.1, 1.0, -0.5, 5.0])
        for chance, trouble in (
            (0.4, self._submit),
            (0.06, lambda: calls.abort(self._someone(), self.now)),
            (0.06, lambda: calls.park(self._someone(), r.choice(["grammar", "x", ""]), self.now)),
            (0.1, lambda: calls.wake(self._someone(), self.now)),
            (0.03, lambda: calls.pause(r.choice(["new", "all"]))),
            (0.15, calls.resume),
            (0.03, lambda: calls.reset_prefix_cache(r.random() < 0.5, self.now)),
            (0.03, calls.reset_prefix_cache),
            (0.1, self._misuse),
            (0.03, lambda: self._lose(calls.retry)),
            (0.02, lambda: self._lose(calls.fail)),
        ):
            if r.random() < chance:
                self._try(trouble)
        self._plan()
        while len(self.flight) >= self.depth or (self.flight and r.random() < 0.3):
            self._commit()

    def _try(self, call: Callable[[], object]) -> None:
        try:
            call()
        except PacelineError as error:
            self.refused[type(error).__name__] += 1

    def _someone(self) -> str:
        return self.random.choice([*self.ids[-8:], "nobody"])

    def _submit(self) -> None:
        r = self.random
        name = f"r{len(self.ids)}" if r.random() < 0.95 else self._someone()
        length = self.recorder.config.step.max_model_len
        prompt = [r.randrange(3) for _ in range(r.randint(1, length))]
        request = Request(
            id=name,
            prompt=prompt,  # pyright: ignore[reportArgumentType]
            max_tokens=r.choice([None, r.randint(1, length)]),
            eos_token_ids=r.choice([(), (2,)]),
            stop_token_ids=r.choice([(), (5, 6)]),
            priority=r.randint(0, 3),
            arrival=r.choice([None, self.now]),
            tenant=r.choice(["", "t1", "t2"]),
            deadline=r.choice([None, 3.0]),
            token_deadline=r.choice([None, 0.3]),
            cache_salt=r.choice(["", "", "salt"]),
            adapter=r.choice(["", "", "lora"]),
            drafts=r.choice([None, None, 2]),
        )
        self.ids.append(name)
        self.recorder.submit(request, self.now, r.choice(["", "", "", "grammar"]))

    def _misuse(self) -> None:
        """A result with impossible counts or shapes, or for a step that is not in flight."""
        r = self.random
        plan = r.choice([*self.flight, *self.past[-4:], replaying.stand_in(9999, 2)])
        rows = len(plan.rows)
        count = np.full(r.choice([rows, rows, rows + 1]), r.choice([300, -1]), np.int32)
        if r.random() < 0.7:
            ids = np.zeros((rows, r.choice([1, 2])), np.int32)
            self.recorder.commit(plan, StepResult(ids, count), self.now)
        elif plan not in self.flight:
            r.choice([self.recorder.fail, self.recorder.retry])(plan, self.now)

    def _lose(self, give_up: Callable[[Plan, float], object]) -> None:
        if self.flight:
            give_up(self.random.choice(self.flight), self.now)
            self.past += self.flight
            self.flight.clear()

    def _plan(self) -> None:
        plan = self.recorder.plan(self.now)
        self.plans.append(plan.to_dict())
        if len(plan.rows):
            self.flight.append(plan)
        else:
            self.past.append(plan)

    def _commit(self) -> None:
        plan = self.flight.popleft()
        self.recorder.commit(plan, self.result(plan), self.now)
        self.past.append(plan)
        if self.random.random() < 0.1:
            self._try(lambda: self.recorder.commit(plan, self.result(plan), self.now))

    def result(self, plan: Plan) -> StepResult:
        rows, r = plan.rows, self.random
        extra = [r.randint(0, drafts) for drafts in rows.drafts.tolist()]
        count = np.where(rows.samples, 1 + np.array(extra, np.int32), 0).astype(np.int32)
        width = 1 + max(rows.drafts.tolist())
        ids = [[r.randrange(9) for _ in range(width)] for _ in range(len(rows))]
        return StepResult(np.array(ids, np.int32), count)

    def _settle(self) -> None:
        """Let what is there run on for a while without trouble, and nothing new in."""
        self.recorder.drain()
        self.recorder.resume()
        for _ in range(40):
            self.now += 0.1
            self._plan()
            while self.flight:
                self._commit()


def told(scheduler: Scheduler | Recorder, ids: list[str]) -> dict[str, str]:
    lives: dict[str, str] = {}
    for name in ids:
        with suppress(PacelineError):
            lives[name] = scheduler.explain(name)
    return lives


@pytest.mark.parametrize("seed", SEEDS)
def test_random_run_replays_to_identical_plans_and_state(seed: int, tmp_path: Path) -> None:
    run = Trouble(seed, tmp_path / "run")
    with run.recorder as recorder:
        replay = Replay(recorder.path)
    plans = [plan.to_dict() for plan in replay.plans()]
    assert replay.divergence is None
    assert plans == run.plans
    assert replay.summary.verified == replay.summary.steps == len(plans)
    assert replay.summary.refused == run.refused.total()
    assert replay.reader.ending is Ending.CLOSED
    assert replay.scheduler.snapshot() == recorder.snapshot()
    assert replay.scheduler.stats == recorder.stats
    assert told(replay.scheduler, run.ids) == told(recorder, run.ids)
    replay.scheduler.check()


def test_the_same_run_is_recorded_to_the_same_bytes(tmp_path: Path) -> None:
    for path in (tmp_path / "run", tmp_path / "again"):
        with Trouble(1, path).recorder:
            pass
    assert (tmp_path / "run").read_bytes() == (tmp_path / "again").read_bytes()


def test_random_runs_hold_every_kind_of_call_and_of_trouble(tmp_path: Path) -> None:
    kinds: Counter[Kind] = Counter()
    preemptions = stale = drafted = 0
    for seed in SEEDS:
        with Trouble(seed, tmp_path / str(seed)).recorder as recorder:
            stats = recorder.stats
        kinds.update(found.kind for found in Reader(recorder.path))
        preemptions += stats.preemptions
        stale += stats.stale_rows
        drafted += stats.drafted
    assert set(Kind) - kinds.keys() == {Kind.SETTINGS, Kind.ENDED}
    assert min(preemptions, stale, drafted, kinds[Kind.REFUSED]) > 50


# -- a small run, taken apart -----------------------------------------------


def small_run(path: Path, steps: int = 12, **other: Any) -> Recorder:
    """Three requests that compete for two slots and few blocks."""
    scheduler = Scheduler.create(
        **{"max_num_seqs": 2, "max_num_batched_tokens": 16, "max_model_len": 32} | other,
        num_blocks=8,
        block_size=4,
    )
    recorder = Recorder(scheduler, path)
    for number, priority in enumerate((2, 1, 0)):
        prompt = np.arange(5 + number)
        request = Request(id=f"r{number}", prompt=prompt, max_tokens=6, priority=priority)
        recorder.submit(request, now=0.5 * number)
    for step in range(steps):
        plan = recorder.plan(now=2.0 + step)
        tokens = {str(name): [7] for name in plan.rows.request_id[plan.rows.samples]}
        recorder.commit(plan, StepResult.of(plan, tokens), now=2.5 + step)
    return recorder


@pytest.fixture
def small(tmp_path: Path) -> Path:
    with small_run(tmp_path / "small") as recorder:
        return recorder.path


def sound_records(path: Path) -> list[bytes]:
    return [record(found.kind, found.payload) for found in Reader(path)]


def settings_of(path: Path) -> dict[str, Any]:
    return Reader(path).preamble.config.to_dict()


def with_settings(path: Path, changed: dict[str, Any], number: int = 1) -> None:
    """The same calls under other settings."""
    content = json.dumps({"paceline": "0.0.1", "settings": changed}).encode()
    head = MAGIC + FORMAT_NUMBER.pack(number) + record(Kind.SETTINGS, content)
    path.write_bytes(b"".join([head, *sound_records(path), record(Kind.ENDED, b"closed")]))


def test_replay_can_stop_at_a_step_and_go_on(small: Path) -> None:
    replay = Replay(small)
    assert replay.run(until=5).steps == 5
    assert replay.reader.ending is Ending.UNREAD
    assert replay.scheduler.snapshot()["step"] == 5
    assert [plan.step for plan in replay.plans(until=7)] == [6, 7]
    assert next(replay.plans()).step == 8
    assert replay.run().steps == 12
    assert replay.reader.ending is Ending.CLOSED


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    with small_run(tmp_path / "tiny", steps=3) as recorder:
        return recorder.path


def test_every_cut_replays_what_came_before_it(tiny: Path, tmp_path: Path) -> None:
    content = tiny.read_bytes()
    first = Reader(tiny).read_bytes
    edges = [first]
    for one in sound_records(tiny):
        edges.append(edges[-1] + len(one))
    steps: list[int] = []
    for length in range(first, len(content)):
        cut = tmp_path / "cut"
        cut.write_bytes(content[:length])
        replay = Replay(cut)
        steps.append(replay.run().steps)
        assert replay.divergence is None
        assert replay.reader.ending is (Ending.OPEN if length in edges else Ending.CUT)
        assert replay.reader.read_bytes == max(edge for edge in edges if edge <= length)
    assert steps == sorted(steps)
    assert (steps[0], steps[-1]) == (0, 3)


def test_every_changed_byte_is_noticed(tiny: Path, tmp_path: Path) -> None:
    content = tiny.read_bytes()
    first = Reader(tiny).read_bytes
    for place in range(len(content)):
        changed = bytearray(content)
        changed[place] ^= 1 << (place % 8)
        (tmp_path / "changed").write_bytes(changed)
        try:
            replay = Replay(tmp_path / "changed")
        except RecordingError:
            assert place < first
            continue
        replay.run()
        assert replay.reader.ending in (Ending.DAMAGED, Ending.CUT)
        assert replay.divergence is None
        assert first <= replay.reader.read_bytes <= place


def test_a_record_of_unknown_kind_is_damage(small: Path) -> None:
    head = small.read_bytes()[: Reader(small).read_bytes]
    small.write_bytes(head + record(99, b""))  # pyright: ignore[reportArgumentType]
    replay = Replay(small)
    assert replay.run().steps == 0
    assert replay.reader.ending is Ending.DAMAGED


# -- what cannot be read at all ---------------------------------------------


@pytest.mark.parametrize("content", [b"", b"\x89pace", b"step,tokens\n1,2\n", b"\0" * 4096])
def test_another_file_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(content)
    with pytest.raises(RecordingError, match="other is not a recording of a scheduler"):
        Replay(tmp_path / "other")


def test_a_missing_file_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Replay(tmp_path / "missing")


@pytest.mark.parametrize("kept", [0, 1, 2, 5, 40, 400])
def test_a_header_cut_short_is_refused(kept: int, small: Path) -> None:
    small.write_bytes(small.read_bytes()[: len(MAGIC) + kept])
    with pytest.raises(RecordingError, match="its settings cannot be read"):
        Replay(small)


def test_a_newer_format_is_refused(small: Path) -> None:
    with_settings(small, settings_of(small), number=2)
    with pytest.raises(RecordingError, match="has format 2; this paceline reads format 1"):
        Replay(small)


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"warp": 9}, "unknown setting 'warp'"),
        ({"policy": "coin_toss"}, "no policy 'coin_toss'"),
        ({"speculation": "nowhere.Any"}, "no speculation 'nowhere.Any'"),
        ({"block_size": -1}, "block_size is -1"),
        ({"block_size": "four"}, "settings do not fit here"),
        ({"tenant_weights": 3}, "settings do not fit here"),
    ],
)
def test_settings_that_do_not_fit_are_refused(
    changed: dict[str, Any], complaint: str, small: Path
) -> None:
    with_settings(small, settings_of(small) | changed)
    with pytest.raises(RecordingError, match=complaint):
        Replay(small)


def test_settings_of_the_wrong_form_are_refused(small: Path) -> None:
    small.write_bytes(MAGIC + FORMAT_NUMBER.pack(1) + record(Kind.SETTINGS, b"[1]"))
    with pytest.raises(RecordingError, match="settings do not fit here"):
        Replay(small)


# -- divergence -------------------------------------------------------------


def test_another_policy_diverges_at_the_step_that_it_changes(small: Path) -> None:
    with_settings(small, settings_of(small) | {"policy": "priority"})
    replay = Replay(small)
    plans = list(replay.plans())
    assert replay.divergence is not None
    assert replay.divergence.step == len(plans) == 1
    told = str(replay.divergence)
    assert told.startswith("step 1: the plans differ in who computes how much")
    assert "who came, left, was preempted or ended" in told
    assert "9 positions in 2 rows (r2: 7, r1: 2), new r2, r1" in told
    assert replay.summary.verified == 0


def test_only_the_parts_that_differ_are_named(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backwards = BlockPool.take
    monkeypatch.setattr(BlockPool, "take", lambda pool, count: backwards(pool, count)[::-1])
    replay = Replay(small)
    replay.run()
    assert replay.divergence is not None
    assert "the plans differ in the blocks handed out; the replay has" in replay.divergence.what


def test_a_defect_in_a_policy_is_found(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Fcfs, "rank", lambda _, sequence: (-sequence.serial,), raising=False)
    replay = Replay(small)
    replay.run()
    assert replay.divergence is not None
    assert replay.divergence.step == 1


def test_a_description_names_only_some_of_many() -> None:
    assert replaying.listing(list("abcdef")) == "a, b, c, d and 2 more"


def test_a_call_refused_then_and_accepted_now_diverges(tmp_path: Path) -> None:
    with small_run(tmp_path / "run", max_num_queued_reqs=3) as recorder:
        recorder.drain()
        with pytest.raises(PacelineError, match="draining"):
            recorder.submit(Request(id="late", prompt=np.arange(3)), now=40.0)
    calls = [one for one in sound_records(recorder.path) if one[4] != Kind.DRAIN]
    head = recorder.path.read_bytes()[: Reader(recorder.path).read_bytes]
    recorder.path.write_bytes(head + b"".join(calls))
    replay = Replay(recorder.path)
    assert replay.run().refused == 0
    assert str(replay.divergence) == (
        "step 12: a call that was refused then is accepted now: "
        "the scheduler is draining and takes no new requests"
    )


def test_a_call_accepted_then_and_refused_now_diverges(small: Path) -> None:
    with_settings(small, settings_of(small) | {"max_num_queued_reqs": 2})
    replay = Replay(small)
    replay.run()
    assert str(replay.divergence) == (
        "step 0: a call that was accepted then is refused now: 2 requests are already waiting"
    )


def test_a_refused_call_moves_the_clock_as_it_did(tmp_path: Path) -> None:
    recorder = Recorder(Scheduler.create(max_num_seqs=2, max_model_len=8), tmp_path / "run")
    with pytest.raises(PacelineError, match="leaves no room"):
        recorder.submit(Request(id="long", prompt=np.arange(8)), now=50.0)
    recorder.submit(Request(id="a", prompt=np.arange(3)), now=7.0)
    recorder.plan(now=8.0)
    recorder.close()
    replay = Replay(recorder.path)
    summary = replay.run()
    assert (summary.requests, summary.refused, summary.verified) == (1, 1, 1)
    assert replay.scheduler.residency.now == 50.0


def test_a_plan_that_only_the_replay_refuses_diverges(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> Plan:
        raise PacelineError("no")

    monkeypatch.setattr(Scheduler, "plan", refuse)
    replay = Replay(small)
    assert list(replay.plans()) == []
    assert str(replay.divergence) == "step 0: a step that was planned then is refused now"


# -- incidents --------------------------------------------------------------


def test_a_crash_inside_a_plan_happens_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound = Scheduler.plan

    def broken(scheduler: Scheduler, now: float) -> Plan:
        assert scheduler.stats.steps < 3, "a defect"
        return sound(scheduler, now)

    with monkeypatch.context() as patch, small_run(tmp_path / "run", steps=3) as recorder:
        patch.setattr(Scheduler, "plan", broken)
        with pytest.raises(AssertionError, match="a defect"):
            recorder.plan(now=99.0)
        replay = Replay(recorder.path)
        with pytest.raises(AssertionError, match="a defect"):
            replay.run()
        assert replay.summary.verified == 3
    replay = Replay(recorder.path)  # with the defect gone, the step has a plan and no digest
    assert len(list(replay.plans())) == 4
    assert (replay.summary.steps, replay.summary.verified) == (4, 3)


KILLED = """
import os, signal, sys
sys.path[:0] = sys.argv[2:]
from pathlib import Path
from tests.sched.test_replay import small_run
recorder = small_run(Path(sys.argv[1]), steps=6)
recorder.plan(now=99.0)
os.kill(os.getpid(), signal.SIGKILL)
"""


def python(script: str, *arguments: str, hash_seed: str = "0") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script, *arguments, str(ROOT), str(ROOT / "src")],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_killed_process_loses_no_call(tmp_path: Path) -> None:
    python(KILLED, str(tmp_path / "run"))
    replay = Replay(tmp_path / "run")
    assert [plan.step for plan in replay.plans()] == list(range(1, 8))
    assert replay.reader.ending is Ending.OPEN
    assert replay.summary.verified == 6  # the digest of the last plan goes out with the next call


ELSEWHERE = """
import sys
sys.path[:0] = sys.argv[2:]
from paceline.sched.replay import Replay
replay = Replay(sys.argv[1])
print(replay.run(), replay.divergence, hash("paceline"))
"""


def test_another_process_replays_to_the_same(tmp_path: Path) -> None:
    for seed in (3, 8):
        with Trouble(seed, tmp_path / "run").recorder as recorder:
            pass
        summary = Replay(recorder.path).run()
        done = [python(ELSEWHERE, str(recorder.path), hash_seed=seed) for seed in ("1", "2")]
        said = [one.stdout.rsplit(maxsplit=1) for one in done]
        assert said[0][1] != said[1][1], "the two hashed alike, so this shows nothing"
        assert said[0][0] == said[1][0] == f"{summary} None", done


# -- the guide --------------------------------------------------------------


def test_the_guide_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    guide = (ROOT / "docs" / "guides" / "replay.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    scope: dict[str, Any] = {}
    blocks = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    for block in blocks:
        exec(compile(block, "docs/guides/replay.md", "exec"), scope)
    assert len(blocks) >= 2
    assert "None" in capsys.readouterr().out
    assert (tmp_path / "run.paceline").exists()
