"""A recorder is a scheduler whose calls reach the file: all of them, compactly, within a bound."""

import inspect
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline import Item, PacelineError, Plan, Request, RequestError, Scheduler, StepResult
from paceline.core.plan import NO_ROWS, Admitted, Candidates, Grown, Rows
from paceline.core.sampling import Sampling
from paceline.sched.replay.format import (
    MAGIC,
    PART_BYTES,
    PARTS,
    Commitment,
    Fingerprint,
    Kind,
    Preamble,
    RecordingError,
    Scores,
    Submission,
)
from paceline.sched.replay.recorder import ENDED_BYTES, Recorder
from paceline.sched.replay.replayer import CHECKSUM, HEAD, Ending, Reader, Replay, next_record
from paceline.sched.swapping import Rates
from tests.sched.support import small

NOT_OFFERED = {"create", "residency"}  # how one is made, and its insides
DIGESTED = {
    Plan: "step rows start grown admitted released preempted finished copies swap_out swap_in "
    "chosen kind",
    Rows: "slot epoch serial request_id child count drafts samples",
    Grown: "slot index block",
    Admitted: "slot request tokens computed blocks resumed",
}


def scheduler(**other: Any) -> Scheduler:
    return Scheduler.create(**{"max_num_seqs": 4, "max_model_len": 64, "num_blocks": 64} | other)


def ask(name: str = "a", tokens: int = 3, **other: Any) -> Request:
    return Request(id=name, prompt=np.arange(tokens), **other)


def result(plan: Plan) -> StepResult:
    rows = plan.rows
    return StepResult(np.full((len(rows), 1), 7, np.int32), rows.samples.astype(np.int32))


def turn(calls: Scheduler | Recorder, now: float = 0.0) -> Plan:
    plan = calls.plan(now)
    calls.commit(plan, result(plan), now)
    return plan


def test_a_recorder_offers_what_a_scheduler_does() -> None:
    for name, member in inspect.getmembers(Scheduler):
        if name.startswith("_") or name in NOT_OFFERED:
            continue
        own = inspect.getattr_static(Recorder, name)
        if inspect.isfunction(member):
            assert inspect.signature(own) == inspect.signature(member), name
        else:
            assert isinstance(own, property), name


def test_what_only_asks_passes_through(tmp_path: Path) -> None:
    with Recorder(scheduler(enable_kv_cache_events=True), tmp_path / "run") as recorder:
        recorder.submit(ask(tokens=20), now=0.0)
        turn(recorder)
        inner = recorder.scheduler
        assert recorder.config is inner.config
        assert recorder.stats is inner.stats
        assert (recorder.idle, recorder.unfinished) == (False, 1)
        assert recorder.usage == inner.usage > 0
        assert recorder.explain("a") == inner.explain("a")
        assert recorder.snapshot() == inner.snapshot()
        assert (recorder.why(), recorder.gate) == (inner.why(), inner.gate)
        assert len(recorder.cache_events()) == 1
        recorder.check()


def test_only_a_fresh_scheduler_is_recorded(tmp_path: Path) -> None:
    waiting, used, late = scheduler(), scheduler(), scheduler()
    waiting.submit(ask(), now=0.0)
    used.plan(now=0.0)
    late.abort("nobody", now=3.0)
    for one in (waiting, used, late):
        with pytest.raises(RecordingError, match="never used"):
            Recorder(one, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_earlier_recording_is_kept_beside_the_new_one(tmp_path: Path) -> None:
    for steps in (3, 2, 1):
        with Recorder(scheduler(), tmp_path / "run") as recorder:
            for _ in range(steps):
                turn(recorder)
    assert Replay(tmp_path / "run").run().steps == 1
    assert Replay(tmp_path / "run.old").run().steps == 2
    assert len(list(tmp_path.iterdir())) == 2


def test_another_file_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letter").write_text("dear")
    with pytest.raises(RecordingError, match="letter exists and is no recording"):
        Recorder(scheduler(), tmp_path / "letter")
    assert (tmp_path / "letter").read_text() == "dear"


def test_an_empty_file_is_used(tmp_path: Path) -> None:
    (tmp_path / "run").touch()
    Recorder(scheduler(), str(tmp_path / "run")).close()
    assert (tmp_path / "run").read_bytes().startswith(MAGIC)
    assert len(list(tmp_path.iterdir())) == 1


def test_closing_twice_ends_once(tmp_path: Path) -> None:
    recorder = Recorder(scheduler(), tmp_path / "run")
    assert recorder.ended == ""
    recorder.close()
    recorder.close()
    assert recorder.ended == "closed"
    assert recorder.size_bytes == (tmp_path / "run").stat().st_size
    assert Replay(tmp_path / "run").run().steps == 0


# -- the bound --------------------------------------------------------------


def test_no_limit_is_exceeded_and_all_within_it_replays(tmp_path: Path) -> None:
    with Recorder(scheduler(), tmp_path / "whole") as recorder:
        head = recorder.size_bytes
        whole = busy(recorder)
    size = recorder.size_bytes
    endings: set[tuple[str, Ending]] = set()
    for limit in range(head + 15, size + 20, 7):
        recorder = Recorder(scheduler(), tmp_path / "run", limit_bytes=limit)
        assert busy(recorder) == whole, "what is recorded changed what is decided"
        recorder.close()
        assert recorder.size_bytes == recorder.path.stat().st_size <= limit
        replay = Replay(recorder.path)
        summary = replay.run()
        assert replay.divergence is None
        assert summary.steps - summary.verified <= 1
        endings.add((recorder.ended, replay.reader.ending))
    assert endings == {("full", Ending.FULL), ("closed", Ending.CLOSED)}


def busy(recorder: Recorder) -> list[dict[str, Any]]:
    """Some of everything; returns the plans."""
    plans: list[dict[str, Any]] = []
    for name in "abc":
        recorder.submit(ask(name, max_tokens=3), now=0.0)
    with pytest.raises(RequestError):
        recorder.submit(ask(), now=0.0)
    recorder.park("b", "grammar", now=0.0)
    plans.append(turn(recorder).to_dict())
    recorder.wake("b", now=0.5)
    recorder.abort("a", now=1.0)
    recorder.pause()
    plans.append(turn(recorder, now=1.0).to_dict())
    recorder.resume()
    recorder.reset_prefix_cache(reset_running_requests=True, now=1.0)
    plan = recorder.plan(now=2.0)
    recorder.retry(plan, now=2.0)
    plan = recorder.plan(now=2.0)
    recorder.fail(plan, now=2.0, message="out of memory")
    recorder.drain()
    plans.append(turn(recorder, now=3.0).to_dict())
    return plans


def test_a_limit_below_the_settings_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="limit_bytes is 100; the settings take"):
        Recorder(scheduler(), tmp_path / "run", limit_bytes=100)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_ends_the_recording_and_not_the_service() -> None:
    recorder = Recorder(scheduler(), "/dev/full")
    assert "No space left" in recorder.ended
    assert len(busy(recorder)) == 3
    recorder.close()


def test_a_short_write_ends_the_recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(scheduler(), tmp_path / "run")
    turn(recorder)
    with recorder._file as sound:  # pyright: ignore[reportPrivateUsage]
        monkeypatch.setattr(recorder, "_file", HalfFile(sound))
        turn(recorder)
    assert recorder.ended == "failed: 8 of 17 bytes were written"
    turn(recorder)
    replay = Replay(recorder.path)
    assert replay.run().steps == 1
    assert replay.reader.ending is Ending.CUT


def test_a_disk_that_fills_up_at_the_end_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder(scheduler(), tmp_path / "run")
    with recorder._file as sound:  # pyright: ignore[reportPrivateUsage]
        monkeypatch.setattr(recorder, "_file", HalfFile(sound))
        recorder.close()
    assert recorder.ended == "failed: 8 of 15 bytes were written"


class HalfFile:
    """A disk that fills up now."""

    def __init__(self, sound: Any) -> None:
        self._sound = sound

    def write(self, content: bytes) -> int:
        return self._sound.write(content[:8])

    def close(self) -> None:
        self._sound.close()


# -- how much it takes ------------------------------------------------------


def test_a_steady_step_takes_the_tokens_and_little_more(tmp_path: Path) -> None:
    running, steps = 64, 20
    many = scheduler(max_num_seqs=running, max_num_batched_tokens=512, num_blocks=512)
    with Recorder(many, tmp_path / "run") as recorder:
        for number in range(running):
            recorder.submit(ask(f"r{number}"), now=0.0)
        turn(recorder)
        turn(recorder)
        before = recorder.size_bytes
        assert {len(turn(recorder).rows) for _ in range(steps)} == {running}
        assert recorder.size_bytes - before <= steps * (running * 4 + 100)


def test_a_mixed_step_takes_a_byte_for_each_count(tmp_path: Path) -> None:
    rows = 200
    ids = np.zeros((rows, 4), np.int32)
    count = np.arange(rows, dtype=np.int32) % 5
    record = Commitment(12, 3.5, rows, StepResult(ids, count)).encoded()
    assert len(record) < rows + 4 * int(count.sum()) + 80


def test_a_request_takes_what_it_says(tmp_path: Path) -> None:
    record = Submission(ask("some-request-id", tokens=1000, max_tokens=64), 12.5, "").encoded()
    assert len(record) < 4 * 1000 + 80


# -- what is written --------------------------------------------------------


def payload(tmp_path: Path, record: bytes) -> bytes:
    (tmp_path / "one").write_bytes(record)
    with (tmp_path / "one").open("rb") as file:
        found = next_record(file, len(record))
    assert not isinstance(found, Ending)
    return found.payload


def test_every_field_of_a_request_survives(tmp_path: Path) -> None:
    full = Request(
        id="\ud800 ü",
        prompt=np.array([2**31 - 1, 0, 7]),
        max_tokens=np.int64(9),  # pyright: ignore[reportArgumentType]
        min_tokens=2,
        ignore_eos=np.True_,  # pyright: ignore[reportArgumentType]
        eos_token_ids=(1, 2),
        stop_token_ids=(3,),
        seed=2**63,
        priority=-4,
        arrival=0.1 + 0.2,
        tenant="t",
        deadline=float("inf"),
        token_deadline=np.float32(0.1),  # pyright: ignore[reportArgumentType]
        cache_salt="s",
        adapter="l",
        drafts=3,
        items=(Item("image", 0, 2), Item("sound", 2, 1)),
        n=2,
        best_of=4,
        beam_width=4,
        length_penalty=np.float32(0.3),  # pyright: ignore[reportArgumentType]
        early_stopping="never",
        sampling=Sampling(temperature=0.7, top_k=5, logit_bias={3: 1.5}, allowed_token_ids=(2, 3)),
    )
    for request in (full, ask()):
        made = Submission(request, 1e-9, "grammar")
        again = Submission.decoded(payload(tmp_path, made.encoded()))
        assert (again.now, again.parked) == (1e-9, "grammar")
        for field in fields(Request):
            one, other = getattr(request, field.name), getattr(again.request, field.name)
            assert np.array_equal(one, other) if field.name == "prompt" else one == other
    assert all(getattr(full, field.name) != field.default for field in fields(Request)[2:])


def test_a_request_that_cannot_be_written_is_the_clients_fault(tmp_path: Path) -> None:
    with Recorder(scheduler(), tmp_path / "run") as recorder:
        for nonsense in (object(), np.arange(3), [np.arange(3)]):
            with pytest.raises(RequestError, match="request 'a': "):
                recorder.submit(ask(tenant=nonsense), now=0.0)
        assert recorder.idle
    assert [found.kind for found in Reader(recorder.path)] == []


@pytest.mark.parametrize(
    ("ids", "count"),
    [
        (np.array([[4], [5]]), np.array([1, 1])),
        (np.array([[4, 9], [5, 9]]), np.array([1, 1])),
        (np.array([[4, 8], [5, 9]]), np.array([2, 0])),
        (np.array([[4, 8], [5, 9]]), np.array([-1, 300])),
        (np.array([[4], [5]]), np.array([1, 1, 1])),
        (np.array([[4], [5]]), np.array([[1], [1]])),
        (np.array([4, 5]), np.array([1, 1])),
        (np.zeros((2, 0)), np.array([1, 1])),
        (np.zeros((0, 1)), np.zeros(0)),
        (np.zeros(()), np.zeros(())),
    ],
)
def test_every_result_survives_as_far_as_it_counts(ids: Any, count: Any, tmp_path: Path) -> None:
    made = Commitment(2**40, 0.3, 2, StepResult(ids.astype(np.int32), count.astype(np.int32)))
    (tmp_path / "one").write_bytes(made.encoded())
    with (tmp_path / "one").open("rb") as file:
        found = next_record(file, 1 << 20)
    assert not isinstance(found, Ending)
    ones = found.kind is Kind.COMMIT_ONES
    again = (Commitment.decoded_ones if ones else Commitment.decoded)(found.payload)
    assert (again.step, again.now, again.rows) == (2**40, 0.3, 2)
    assert np.array_equal(again.result.count, count)
    if ids.ndim == 2 and count.shape == (len(ids),):
        for row, number in enumerate(count.tolist()):
            kept = again.result.ids[row, : max(number, 0)].tolist()
            assert kept == ids[row, : max(number, 0)].tolist()
    else:
        assert np.array_equal(again.result.ids, ids)


LOGPROBS = np.array([[-0.5, -1.5], [-2.5, -3.5]], np.float32)
CANDIDATES = Candidates(
    np.array([[4, 5, -1], [6, 7, 8]], np.int32),
    np.array([[-0.25, -0.75, -np.inf], [-1.25, -1.75, -2.25]], np.float32),
)


@pytest.mark.parametrize("logprob", [LOGPROBS, LOGPROBS[:, :1], None])
@pytest.mark.parametrize("candidates", [CANDIDATES, None])
def test_all_that_a_result_says_beside_the_tokens_survives(
    logprob: Any, candidates: Any, tmp_path: Path
) -> None:
    ids, count = np.zeros((2, 2), np.int32), np.ones(2, np.int32)
    said = Scores.of(StepResult(ids, count, logprob, candidates))
    if said is None:
        assert logprob is candidates is None
        return
    again = Scores.decoded(payload(tmp_path, said.encoded())).added_to(StepResult(ids, count))
    assert (again.ids is ids, again.count is count) == (True, True)
    assert np.array_equal(again.logprob, logprob) if logprob is not None else not again.logprob
    if candidates is None:
        assert again.candidates is None
    else:
        assert again.candidates is not None
        assert np.array_equal(again.candidates.ids, candidates.ids)
        assert np.array_equal(again.candidates.logprob, candidates.logprob)


def test_measured_rates_are_replayed(tmp_path: Path) -> None:
    with Recorder(scheduler(), tmp_path / "run") as recorder:
        recorder.measure(Rates(3.5, 0.1 + 0.2))
    replay = Replay(recorder.path)
    replay.run()
    assert replay.scheduler.residency.swapping.rates == Rates(3.5, 0.1 + 0.2)


# -- digests ----------------------------------------------------------------


def sample_plan() -> Plan:
    slot = np.array([1, 2])
    column = np.array([3, 4], np.int32)
    names = np.array(["a", "b"], object)
    samples = np.array([True, False])
    rows = Rows(slot, column, slot, names, column, column, column, samples)
    new = Admitted(2, ask("b"), np.arange(3, dtype=np.int32), 0, (8, 9), False)
    pairs = (((1, 2),), ((3, 4),), ((5, 6),), ((7, 8),))
    grown = Grown(slot, slot, column)
    return Plan(7, rows, column, grown, (new,), (5,), ("p",), ("f",), *pairs)


def altered(value: Any) -> Any:
    """Something else of the same form."""
    if isinstance(value, np.ndarray):
        return np.array(["c", "d"], object) if value.dtype == object else ~value
    if isinstance(value, tuple):
        return (*value, value[0])
    if isinstance(value, Request):
        return ask("other")
    if isinstance(value, str):
        return "decode"
    return not value if isinstance(value, bool) else value + 1


def test_the_digest_covers_every_field() -> None:
    for kind, names in DIGESTED.items():
        assert [field.name for field in fields(kind)] == names.split(), "digest the new field too"
    plan = sample_plan()
    plainly = [name for name in DIGESTED[Plan].split() if name not in ("rows", "grown")]
    others = [replace(plan, **{name: altered(getattr(plan, name))}) for name in plainly]
    for name in DIGESTED[Rows].split():
        value = altered(getattr(plan.rows, name))
        others.append(replace(plan, rows=replace(plan.rows, **{name: value})))
    for name in DIGESTED[Grown].split():
        value = altered(getattr(plan.grown, name))
        others.append(replace(plan, grown=replace(plan.grown, **{name: value})))
    for name in DIGESTED[Admitted].split():
        value = altered(getattr(plan.admitted[0], name))
        others.append(replace(plan, admitted=(replace(plan.admitted[0], **{name: value}),)))
    digests = [Fingerprint().of(one) for one in (plan, *others)]
    assert len(set(digests)) == len(digests) == 29
    assert {len(digest) for digest in digests} == {PART_BYTES * len(PARTS)}
    assert Fingerprint().of(sample_plan()) == digests[0]


def test_the_digest_covers_a_field_that_alone_says_something() -> None:
    nothing = Plan(7, NO_ROWS, NO_ROWS.count)
    full, rest = sample_plan(), DIGESTED[Plan].split()[3:]
    others = [replace(nothing, **{name: getattr(full, name)}) for name in rest if name != "kind"]
    others.append(replace(nothing, kind="prefill"))
    digests = [Fingerprint().of(one) for one in (nothing, *others)]
    assert len(set(digests)) == len(digests) == 11


def test_shared_rows_give_the_same_digest_as_equal_ones() -> None:
    plan, reused = sample_plan(), Fingerprint()
    later = replace(plan, step=8)
    assert reused.of(plan) == Fingerprint().of(plan)
    assert reused.of(later) == Fingerprint().of(later) != Fingerprint().of(plan)


def test_errors_of_recordings_are_ours() -> None:
    assert issubclass(RecordingError, PacelineError)


def test_a_limit_leaves_room_for_the_end(tmp_path: Path) -> None:
    least = len(Preamble.of(small().config).encoded()) + ENDED_BYTES
    with pytest.raises(RecordingError, match=f"limit_bytes is {least - 1}; the settings take"):
        Recorder(small(), tmp_path / "run", limit_bytes=least - 1)
    Recorder(small(), tmp_path / "run", limit_bytes=least).close()


def test_what_is_said_is_recorded_even_if_it_is_nothing() -> None:
    asked = ask("a", 3, sampling=Sampling(temperature=0.0, logprobs=0))
    payload = Submission(asked, 0.0, "").encoded()[HEAD.size + CHECKSUM.size :]
    assert Submission.decoded(payload).request.sampling == asked.sampling
