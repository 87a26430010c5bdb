"""What the page makes of frames: what it keeps, who is in a slot, and figures of a period."""

from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from playwright.sync_api import Page

from paceline.engine.live.frames import (
    BlockCells,
    Frame,
    LatencyCounts,
    QueueHead,
    RequestCounts,
    Seat,
    StepRecord,
    StepSplit,
    Totals,
)
from tests.browser.site import Site

NO_BLOCKS = BlockCells(0, 0, 0, 0, 0, 1, "")
NO_TOTALS = Totals(*[0] * 12)


def step(number: int, cells: str) -> StepRecord:
    return StepRecord(number, number / 10, StepSplit(), 1, 1, 0, 0, 0, 0, 0, 1, 0, cells)


def frame(run: int, number: int, time: float, **fields: Any) -> Frame:
    made = Frame(
        engine=0,
        run=run,
        number=number,
        time=time,
        since=time - 0.5,
        policy="fcfs",
        slots=4,
        block_size=16,
        steps=(),
        left_out=0,
        seats=(),
        split=StepSplit(),
        counts=RequestCounts(0, 0, 0, 0),
        totals=NO_TOTALS,
        usage=0.0,
        tokens_per_s=0.0,
        blocks=NO_BLOCKS,
        host=NO_BLOCKS,
        queue=QueueHead((), 0),
        first_token=LatencyCounts((), (), 0.0),
        between=LatencyCounts((), (), 0.0),
    )
    return msgspec.structs.replace(made, **fields)


@dataclass
class Modules:
    """The modules of the page in a browser."""

    page: Page

    def run(self, module: str, body: str, argument: Any = None) -> Any:
        """The value of a function body in which `m` is the module and `x` the argument."""
        script = f"async x => {{ const m = await import('./{module}'); {body} }}"
        return self.page.evaluate(script, msgspec.to_builtins(argument))

    def history(self, frames: list[Frame], ask: str) -> Any:
        """Of the history `h` of some frames."""
        body = f"const h = new m.History(); const isNew = x.map(f => h.add(f)); return {ask};"
        return self.run("history.js", body, frames)


@pytest.fixture(scope="module")
def modules(page: Page, served: Site) -> Modules:
    page.goto(f"{served.url}/dashboard")
    return Modules(page)


def test_frames_that_come_again_or_are_lost_are_noticed(modules: Modules) -> None:
    frames = [frame(1, 1, 0.5), frame(1, 2, 1.0), frame(1, 1, 0.5), frame(1, 2, 1.0)]
    frames.append(frame(1, 6, 3.0))
    assert modules.history(frames, "isNew") == [True, True, False, False, True]
    assert modules.history(frames, "[h.entries.length, h.lost, h.entries[2].lost]") == [3, 3, 3]


def test_a_new_run_begins_a_new_spell_even_with_old_numbers(modules: Modules) -> None:
    frames = [frame(1, 1, 0.5), frame(1, 2, 1.0), frame(2, 1, 1.5)]
    frames += [frame(2, 1, 9.0), frame(2, 2, 9.5)]  # another server, with the same run by chance
    assert modules.history(frames, "h.entries.map(e => e.spell)") == [1, 1, 2, 3, 3]
    assert modules.history(frames, "h.windowStart(4, 60).frame.time") == 9.0
    assert modules.history(frames, "h.windowStart(2, 60)") is None


def test_a_time_without_a_page_ends_a_spell(modules: Modules) -> None:
    frames = [frame(1, 1, 0.5), frame(1, 2, 1.0), frame(1, 3, 60.0, steps=(step(9, "d"),))]
    assert modules.history(frames, "h.entries.map(e => e.spell)") == [1, 1, 2]
    assert modules.history(frames, "[h.lost, h.columns[0].isApart]") == [0, True]


def test_a_slot_is_of_the_sequence_that_took_it_last(modules: Modules) -> None:
    steps = tuple(step(number, "pd") for number in range(1, 9))
    seats = (Seat(0, 5, "b", -1, 7), Seat(1, 1, "c", -1, 7), Seat(0, 1, "a", -1, 7))
    found = modules.history(
        [frame(1, 1, 0.5, steps=steps, seats=seats)],
        "[4, 5, 8].map(n => h.seatAt(h.last.run, 0, n)[2]) + h.seatAt(h.last.run, 2, 8)",
    )
    assert found == "a,b,bnull"


def test_only_the_latest_frames_are_kept(modules: Modules) -> None:
    add_many = """
      const h = new m.History();
      for (let i = 1; i < 1400; i++) {
        const steps = [{ ...x.steps[0], step: i }];
        h.add({ ...x, number: i, time: i, since: i - 1, steps });
      }
      const last = h.columnsUntil(h.last, 2).map(c => c.record.step);
      return [h.entries.length, h.droppedEntries, h.columns[0].record.step, last];"""
    like = frame(1, 1, 1.0, steps=(step(1, "d"),))
    kept, dropped, first, last = modules.run("history.js", add_many, like)
    assert 1200 <= kept <= 1250
    assert kept + dropped == 1399
    assert first == dropped + 1
    assert last == [1398, 1399]


def test_figures_are_of_the_period(modules: Modules) -> None:
    before = frame(1, 1, 10.0, totals=Totals(100, 0, 500, 0, 0, 0, 0, 0, 64, 0, 0, 0))
    now = frame(
        1,
        2,
        14.0,
        totals=Totals(120, 0, 900, 0, 0, 0, 0, 2, 164, 25, 0, 0),
        split=StepSplit(plan=0.02, wait=0.18),
        first_token=LatencyCounts((0.1, 0.2), (0, 10, 0), 1.5),
    )
    body = "const f = m.figuresOf(x[1], x[0]); return [f.seconds, f.hitRate, f.stepTime];"
    assert modules.run("figures.js", body, [before, now]) == pytest.approx([4.0, 0.25, 0.01])
    medians = "return [0.5, 1].map(share => m.quantile(x, share));"
    assert modules.run("figures.js", medians, now.first_token) == pytest.approx([0.15, 0.2])
    over = LatencyCounts((0.1,), (1, 9), 5.0)
    assert modules.run("figures.js", "return m.quantile(x, 0.5) === Infinity;", over)
    assert (
        modules.run("figures.js", "return m.quantile(x, 0.5);", LatencyCounts((0.1,), (0, 0), 0))
        is None
    )


def test_the_rate_of_tokens_is_that_of_the_last_second(modules: Modules) -> None:
    """The tile, the chart and the sentence for screen readers say the same."""
    tokens = ((10.0, 0), (12.0, 300), (12.5, 310), (13.0, 350))
    frames = [
        frame(1, number, time, since=9.0, totals=Totals(0, 0, of, *[0] * 9), tokens_per_s=80.0)
        for number, (time, of) in enumerate(tokens, 1)
    ]
    rates = modules.history(frames, "h.entries.map((_, at) => h.tokensPerS(at))")
    assert rates == pytest.approx([80.0, 150.0, 124.0, 50.0])


def test_as_many_slots_are_taken_as_requests_run(modules: Modules) -> None:
    """Also before the first step has a record, and if a request ended in the latest one."""
    body = """
      const { History } = await import('./history.js');
      return x.map(frame => {
        const history = new History();
        history.add(frame);
        return m.slotsInUse(history, history.last);
      });"""
    running = RequestCounts(9, 0, 0, 0)
    seats = (Seat(0, 1, "a", 0, 7), Seat(1, 1, "a", 1, 7))
    frames = [
        frame(1, 1, 0.5, counts=running),
        frame(1, 1, 0.5, counts=running, steps=(step(1, "d..."),)),
        frame(1, 1, 0.5, counts=RequestCounts(1, 0, 0, 0), steps=(step(1, "dd.."),), seats=seats),
    ]
    assert modules.run("slots.js", body, frames) == [9, 9, 2]


def test_events_may_be_cut_anywhere(modules: Modules) -> None:
    text = 'event: frame\ndata: {"a": "é\\n"}\n\n: alive\n\nevent: status\r\ndata: {}\r\n\r\n'
    cut = "const p = new m.EventParser(); const found = [...x].flatMap(c => p.push(c));"
    body = f"{cut} return found.map(e => [e.event, e.data]);"
    assert modules.run("sse.js", body, text) == [["frame", '{"a": "é\\n"}'], ["status", "{}"]]


def test_numbers_are_short(modules: Modules) -> None:
    body = "return x.map(m.duration);"
    values = [0, 0.0004, 0.0123, 1.5, 42, 150, 179.7, 3599.7, 7300]
    minutes = ["2:30 min", "3:00 min", "1:00 h", "2:01 h"]
    expected = ["0 ms", "400 µs", "12 ms", "1.5 s", "42 s", *minutes]
    assert modules.run("words.js", body, values) == expected
    periods = modules.run("words.js", "return x.map(m.period);", [0.000601, 1.2, 9.1, 60])
    assert periods == ["second", "second", "9.1 s", "60 s"]


def test_charts_of_a_recording_begin_at_its_begin(modules: Modules) -> None:
    body = "return x.map(([end, isWall]) => m.timeSpan(end, 60, isWall));"
    spans = modules.run("charts.js", body, [[5.0, False], [100.0, False], [5.0, True]])
    assert [(one["min"], one["max"]) for one in spans] == [(0, 60), (40, 100), (-55, 5)]


def test_the_table_of_an_idle_engine_is_empty(modules: Modules) -> None:
    body = """
      const { History } = await import('./history.js');
      return x.map(frame => {
        const history = new History();
        history.add(frame);
        const table = new m.RunningTable(() => {});
        table.draw({ history, entry: history.last });
        return table.body.textContent;
      });"""
    steps, seats = (step(1, "d"),), (Seat(0, 1, "a", -1, 7),)
    frames = [
        frame(1, 1, 0.5, steps=steps, seats=seats, counts=RequestCounts(running, 0, 0, 0))
        for running in (1, 0)
    ]
    assert modules.run("tables.js", body, frames) == ["0adecode7", ""]
