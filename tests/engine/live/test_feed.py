"""Frames say what the scheduler says, are bounded, and nothing is recorded without a page."""

import asyncio
from collections.abc import Iterator
from random import Random
from typing import Any

import msgspec
import pytest

from paceline.core.errors import RequestError
from paceline.core.request import Request
from paceline.engine.api import EngineFailed
from paceline.engine.live import feed as module
from paceline.engine.live.feed import FRAME_S, UNASKED_S, LiveControl
from paceline.engine.live.frame_maker import MOST_QUEUED
from paceline.engine.live.frames import LATEST, Frame, FrameAnswer, FrameQuestion, Seat, StepRecord
from paceline.engine.loop.messages import Question
from tests.engine.live.shown import ShownEngine
from tests.seeds import seeds

SETTINGS: list[dict[str, Any]] = [
    {"policy": "fcfs", "depth": 1},
    {"policy": "fair", "depth": 2},
    {"policy": "priority", "depth": 3, "preemption_mode": "swap", "swap_space": 16},
    {"policy": "shortest", "depth": 2, "num_blocks": 14},
]
COMPUTING = set("prcds")


def check_record(shown: ShownEngine, record: StepRecord) -> None:
    """Compare a record with what the engine's own observer saw."""
    seen = shown.witness.steps[record.step]
    plan = seen.plan
    assert (record.rows, record.positions) == (len(plan.rows), plan.total)
    assert (record.admitted, record.preempted) == (len(plan.admitted), len(plan.preempted))
    assert record.tokens == shown.witness.tokens[record.step]
    cells = dict(enumerate(record.cells))
    assert {slot for slot, cell in cells.items() if cell in COMPUTING} == set(seen.rows)
    idle = {slot for slot, cell in cells.items() if cell == "i"}
    assert idle == seen.residents.keys() - seen.rows.keys()
    begun = {slot for slot, cell in cells.items() if cell in "pc"}
    again = {slot for slot, cell in cells.items() if cell == "r"}
    assert begun <= seen.prompts <= begun | again
    assert record.prompts == len(begun | again)
    gone = {slot for slot, cell in cells.items() if cell == "x"}
    assert gone <= set(plan.released) - seen.residents.keys()
    for slot, request_id in seen.residents.items():
        assert shown.occupant(slot, record.step) == request_id


def check_frame(shown: ShownEngine, frame: Frame) -> None:
    """Compare a frame that was just made with the state of the scheduler."""
    scheduler, stats = shown.scheduler, shown.scheduler.stats
    gauges, snapshot = scheduler.view.gauges(), scheduler.snapshot()
    counts = frame.counts
    assert (counts.running, counts.waiting) == (len(snapshot["running"]), gauges.waiting)
    assert (counts.parked, counts.swapped) == (gauges.parked, gauges.swapped)
    assert (frame.totals.tokens, frame.totals.finished) == (stats.sampled, stats.finished)
    pool, blocks = scheduler.state.cache.pool, frame.blocks
    assert blocks.held + blocks.shared + blocks.cached + blocks.free == blocks.size == pool.size
    assert (blocks.held + blocks.shared, blocks.cached) == (pool.size - pool.free, pool.cached)
    assert blocks.shared == sum(pool.holders(block) > 1 for block in range(pool.size))
    assert [blocks.cells.count(kind) for kind in "fch"] == [blocks.free, blocks.cached, blocks.held]
    assert frame.usage == scheduler.usage
    queued = [*snapshot["swapped"], *snapshot["waiting"], *snapshot["parked"]]
    assert frame.queue.total == len(queued)
    assert [one.request_id for one in frame.queue.first] == queued[:MOST_QUEUED]
    why = scheduler.why()
    assert all(one.reason == why[one.request_id] for one in frame.queue.first)
    known = sum(frame.first_token.counts) + sum(frame.between.counts)
    assert known <= stats.sampled


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda one: one["policy"])
@pytest.mark.parametrize("seed", seeds(2))
def test_frames_are_what_the_scheduler_says(settings: dict[str, Any], seed: int) -> None:
    shown, random = ShownEngine(**settings), Random(seed)
    frames: list[Frame] = []
    records: list[StepRecord] = []
    for _ in range(60):
        if random.random() < 0.3:
            shown.submit(random, random.randint(1, 6), priority=random.randint(0, 2))
        if live := shown.scheduler.view.live_ids():
            if random.random() < 0.05:
                shown.engine.abort(random.choice(live))
            if random.random() < 0.05:
                shown.engine.park(random.choice(live), "grammar")
        shown.turn()
        if random.random() < 0.3 and (found := shown.ask()):
            check_frame(shown, found[-1])
            frames += found
            records += [record for frame in found for record in frame.steps]
    assert [frame.number for frame in frames] == list(range(1, len(frames) + 1))
    for record in records:
        check_record(shown, record)
    first = min(one.step for one in records)
    steps = [step for step in shown.witness.tokens if step >= first]
    counted = sum(1 + one.left_out for one in records) - records[0].left_out
    assert counted + frames[-1].left_out <= len(steps)
    if settings["policy"] == "fair" and frames[-1].tenants:
        served = [one.served for one in frames[-1].tenants]
        assert served == sorted(served)


def test_every_step_has_a_record_if_steps_take_long() -> None:
    shown = ShownEngine()
    shown.ask()
    shown.submit(Random(1), 4)
    frames: list[Frame] = []
    while not shown.engine.idle:
        shown.turn()
        frames += shown.ask()
    shown.clock.advance_to(shown.clock() + FRAME_S)
    frames += shown.ask()
    records = [record for frame in frames for record in frame.steps]
    assert [one.step for one in records] == [*shown.witness.tokens]
    assert not any(one.left_out for one in records)
    assert sum(one.tokens for one in records) == shown.scheduler.stats.sampled
    assert records[0].split.wait == pytest.approx(0.05)
    assert frames[-1].split.wait == pytest.approx(0.05 * len(records))


def test_steps_that_take_little_time_are_left_out_and_counted() -> None:
    shown = ShownEngine(step_s=FRAME_S / 1000, max_model_len=512, num_blocks=200)
    shown.ask()
    shown.engine.submit(Request("a", [1, 2], max_tokens=500, ignore_eos=True))
    while not shown.engine.idle:
        shown.turn()
    shown.clock.advance_to(10.0)
    (frame,) = shown.ask()
    assert len(frame.steps) <= module.RECORDS
    counted = sum(1 + one.left_out for one in frame.steps) + frame.left_out
    assert counted == len(shown.witness.tokens)


def test_latencies_are_those_of_the_lives() -> None:
    shown = ShownEngine(max_num_seqs=2)
    shown.ask()
    shown.engine.submit(Request("a", [1] * 20, max_tokens=4, ignore_eos=True))
    shown.engine.submit(Request("b", [2] * 20, max_tokens=3, ignore_eos=True))
    while not shown.engine.idle:
        shown.turn()
    shown.clock.advance_to(10.0)
    (frame,) = shown.ask()
    assert frame.first_token.total == pytest.approx(0.05 + 0.10)
    assert sum(frame.first_token.counts) == 2
    assert frame.between.total <= 0.05 * (3 + 2) + 1e-9
    assert frame.between.total == pytest.approx(0.05 * sum(frame.between.counts))


# -- a page comes and goes --------------------------------------------------


def test_nothing_is_recorded_without_a_page() -> None:
    shown = ShownEngine()
    shown.submit(Random(0), 9)
    shown.turn()
    assert shown.engine._observer is shown.witness
    shown.ask()
    shown.turn()
    assert shown.engine._observer is not shown.witness
    shown.clock.advance_to(shown.clock() + UNASKED_S)
    while shown.engine._observer is not shown.witness:
        assert not shown.engine.idle
        shown.turn()
    shown.submit(Random(1), 9)
    for _ in range(3):
        shown.turn()
    (frame,) = shown.ask()
    assert frame.number == 2, "the history is kept"
    shown.turn()
    shown.clock.advance_to(shown.clock() + FRAME_S)
    (frame,) = shown.ask()
    for record in frame.steps:
        check_record(shown, record)


def test_frames_are_not_made_more_often_than_needed() -> None:
    shown = ShownEngine()
    assert [frame.number for frame in shown.ask()] == [1]
    assert shown.ask() == []
    shown.clock.advance_to(FRAME_S)
    assert [frame.number for frame in shown.ask()] == [2]


def test_history_and_answers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT_FRAMES", 10)
    monkeypatch.setattr(module, "ANSWER_BYTES", 5000)
    shown, random = ShownEngine(), Random(3)
    for number in range(1, 31):
        shown.submit(random, 1)
        shown.turn()
        shown.clock.advance_to(number * FRAME_S)
        shown.ask()
    other = ShownEngine.__new__(ShownEngine)
    other.__dict__ |= {**shown.__dict__, "_at": FrameQuestion(), "seats": {}}
    numbers: list[int] = []
    while frames := other.ask():
        assert sum(len(msgspec.json.encode(one)) for one in frames) <= 5000 or len(frames) == 1
        numbers += [frame.number for frame in frames]
        for record in (record for frame in frames for record in frame.steps):
            check_record(other, record)
    assert numbers == list(range(21, 31)), "a page that comes late knows every slot all the same"


def test_a_page_that_is_behind_gets_the_latest_frame_alone() -> None:
    shown, random = ShownEngine(), Random(4)
    for number in range(1, 6):
        shown.submit(random, 2)
        shown.turn()
        shown.clock.advance_to(number * FRAME_S)
        shown.ask()
    answer = shown.answer(FrameQuestion(0, 0, LATEST))
    (body,) = answer.frames
    frame = msgspec.json.decode(body, type=Frame)
    assert (frame.number, answer.number, answer.more) == (5, 5, False)
    seated = {seat.slot: seat.request_id for seat in (*answer.base, *frame.seats)}
    table = shown.scheduler.state.table
    drawn = [slot for slot in table.order.tolist() if slot in seated]
    assert drawn
    assert all(seated[slot] == table.sequence(slot).id for slot in drawn)


class CountedSeats(tuple[Seat, ...]):
    """Counts how often they are read."""

    reads = 0

    def __iter__(self) -> Iterator[Seat]:
        CountedSeats.reads += 1
        return super().__iter__()


def test_a_question_reads_no_seats_of_frames_that_the_page_has() -> None:
    """With many requests per second they are hundreds of thousands, and the engine waits."""
    history = module.FrameHistory()
    for number in range(1, 9):
        seats = CountedSeats([Seat(0, number, f"r{number}", -1, 1)])
        history.add(module.KeptFrame(number, b"{}", seats))
    CountedSeats.reads = 0
    frames, base, _ = history.after(5)
    assert ([one.number for one in frames], base) == ([6, 7, 8], ())
    (frame,), (before,), _ = history.after(LATEST)
    assert (frame.number, before.request_id) == (8, "r7")
    assert CountedSeats.reads == 0


def test_another_run_begins_anew() -> None:
    shown = ShownEngine()
    shown.ask()
    answer = shown.answer(FrameQuestion(0, run=1, number=77))
    assert (answer.run > 1, answer.number, len(answer.frames)) == (True, 1, 1)


# -- lives ------------------------------------------------------------------


def test_the_life_of_a_request() -> None:
    shown = ShownEngine(max_num_seqs=1)
    for name, arrival in (("a", None), ("b", -2.0)):
        request = Request(name, [1, 2, 3], max_tokens=3, tenant="t", arrival=arrival)
        shown.engine.submit(request)
    for _ in range(2):
        shown.turn()
    first, second = (shown.engine.answer(Question("life", name)) for name in "ab")
    assert (first["state"], first["known"], first["computed"]) == ("RUNNING", 5, 4)
    assert [one["phase"] for one in first["phases"]] == ["waiting", "prefill", "decode"]
    assert first["phases"][-1]["end"] is None
    assert list(first["sentences"]) == shown.scheduler.explain("a").splitlines()
    assert (second["state"], second["prompt"], second["tenant"]) == ("WAITING", 3, "t")
    before, waiting = second["phases"]
    assert (before["phase"], before["begin"], before["end"]) == ("before the engine", -2.0, 0.0)
    assert (waiting["phase"], waiting["begin"]) == ("waiting", 0.0)
    while not shown.engine.idle:
        shown.turn()
    ended = shown.engine.answer(Question("life", "a"))
    assert (ended["state"], ended["known"]) == ("FINISHED_LENGTH", 6)
    assert ended["phases"][-1]["end"] == ended["moments"][-1]["time"]
    with pytest.raises(RequestError, match="no request 'c'"):
        shown.engine.answer(Question("life", "c"))


def test_questions_that_make_no_sense() -> None:
    shown = ShownEngine()
    with pytest.raises(RequestError, match="does not name frames"):
        shown.engine.answer(Question("frames", "{"))
    shown.engine.feed = None
    with pytest.raises(RequestError, match="feeds no live pages"):
        shown.engine.answer(Question("frames"))


class AskedEngine(LiveControl):
    """Asks an engine on a virtual clock, which sleeping moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(self._answered)
        self.shown, self.questions = ShownEngine(), list[FrameQuestion]()
        monkeypatch.setattr(module, "monotonic", self.shown.clock)
        monkeypatch.setattr(module, "sleep", self._sleep)

    async def _sleep(self, seconds: float) -> None:
        self.shown.clock.advance_to(self.shown.clock() + seconds)
        await asyncio.sleep(0)

    async def _answered(self, verb: str, argument: str) -> Any:
        assert verb == "frames"
        self.questions.append(FrameQuestion.of(argument))
        return msgspec.msgpack.encode(self.shown.answer(self.questions[-1]))


async def follow(control: LiveControl, answers: int) -> list[int]:
    """The frames that a page gets."""
    question, numbers = FrameQuestion(), list[int]()
    for _ in range(answers):
        answer = await control.frames(question)
        numbers += range(answer.number - len(answer.frames) + 1, answer.number + 1)
        question = FrameQuestion(0, answer.run, answer.number)
    return numbers


def test_many_pages_ask_as_often_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        control = AskedEngine(monkeypatch)
        assert await follow(control, 3) == [1, 2, 3]
        alone = len(control.questions)
        found = await asyncio.gather(*(follow(control, 6) for _ in range(5)))
        for numbers in found:
            assert numbers == list(range(1, numbers[-1] + 1)), "none is lost, none comes twice"
        assert len(control.questions) - alone <= 5 + 6, "each asks for the history by itself"

    asyncio.run(scenario())


def test_an_engine_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ANSWER_S", 0.01)

    async def never(verb: str, argument: str) -> FrameAnswer:
        asked.append(argument)
        return await asyncio.Event().wait()  # type: ignore[return-value]

    asked: list[str] = []

    async def scenario() -> None:
        control = LiveControl(never)
        pages = [control.frames(FrameQuestion()) for _ in range(3)]
        for found in await asyncio.gather(*pages, return_exceptions=True):
            assert isinstance(found, EngineFailed)
            assert "not answered for" in str(found)
        assert len(asked) == 1, "pages do not wait for one another before they are told"

    asyncio.run(scenario())
