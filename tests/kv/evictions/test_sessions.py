"""Sessions that come back, on a scheduler with memory for few of them."""

from dataclasses import dataclass
from random import Random

import pytest

from paceline import Request, Scheduler, StepResult
from paceline.core.errors import ConfigError
from paceline.core.settings.config import CacheConfig
from paceline.kv.eviction import Lru, StoppedClock, load
from paceline.kv.evictions.lines import Session
from paceline.kv.evictions.sessions import Sessions
from paceline.sched.replay.checkpoint import PlansInFlight, SchedulerCheckpoint

SIZE = 4
ANSWER = 9


def finish(scheduler: Scheduler, now: float) -> None:
    """Run all requests to their end."""
    while not scheduler.idle:
        plan = scheduler.plan(now)
        rows = zip(plan.rows.request_id.tolist(), plan.rows.samples.tolist(), strict=True)
        samples = {row: [ANSWER] for row, has_sample in rows if has_sample}
        scheduler.commit(plan, StepResult.of(plan, samples), now)


@dataclass
class Chat:
    """A conversation; each turn adds tokens, and the answer."""

    scheduler: Scheduler
    tokens: list[int]
    number: int = 0
    own: int = 0  # tells it from others that begin alike

    def turn(self, now: float, name: str, *, named: bool = False, more: int = 8) -> int:
        """Returns the tokens found in the cache."""
        self.tokens += [1000 * (1 + self.number) + self.tokens[0] + self.own] * more
        self.number += 1
        request = Request(
            f"{name} {self.number}", list(self.tokens), max_tokens=4, session=name if named else ""
        )
        self.scheduler.submit(request, now)
        before = self.scheduler.stats.prefix_hits
        finish(self.scheduler, now)
        self.tokens += [ANSWER] * 4
        return self.scheduler.stats.prefix_hits - before


def scheduler_of(blocks: int, **settings: object) -> Scheduler:
    return Scheduler.create(
        num_blocks=blocks,
        block_size=SIZE,
        max_model_len=400,
        max_num_batched_tokens=400,
        **{"eviction": "sessions", **settings},
    )


def order_of(scheduler: Scheduler) -> Sessions:
    order = scheduler.state.cache.eviction
    assert isinstance(order, Sessions)
    return order


@pytest.mark.parametrize("named", [False, True])
def test_quick_sessions_stay_and_those_that_never_return_go(named: bool) -> None:
    """Requests that come once are as recent as the quick session, and yet reused before it."""
    found: dict[str, int] = {}
    for eviction in ("lru", "sessions"):
        scheduler, random = scheduler_of(90, eviction=eviction), Random(0)
        quick = [Chat(scheduler, [number] * 40) for number in range(2)]
        now, number, hits = 0.0, 0, 0
        for turn in range(50):
            now += 10.0
            for one in quick:
                if len(one.tokens) > 150:
                    one.tokens[40:] = []
                hits += one.turn(now, f"quick {one.tokens[0]}", named=named) * (turn > 30)
            for _ in range(5):
                number += 1
                once = Chat(scheduler, [10_000 + number] * 50)
                once.turn(now + random.uniform(0.1, 9.0), f"once {number}", named=named)
        found[eviction] = hits
        scheduler.check()
    assert found["sessions"] > 2 * found["lru"]


def test_a_session_is_known_by_its_prefix_after_all_its_blocks_were_reused() -> None:
    scheduler = scheduler_of(40)
    chat = Chat(scheduler, [1] * 40)
    chat.turn(0.0, "a")
    Chat(scheduler, [2] * 148).turn(1.0, "b")
    assert chat.turn(30.0, "a") == 0
    sessions = [line.session for line in order_of(scheduler).lines.values()]
    assert [round(2**one.pace) for one in sessions if one.turns == 1] == [30]


def test_explain_says_what_was_evicted() -> None:
    scheduler = scheduler_of(40)
    chat = Chat(scheduler, [1] * 60)
    chat.turn(0.0, "a")
    Chat(scheduler, [2] * 90).turn(5.0, "b")
    found = chat.turn(8.0, "a")
    assert 0 < found < 60
    told = scheduler.explain("a 2")
    missing = 68 - found
    assert f"computes again what was cached: up to {missing} tokens evicted 3.0 s before" in told


def test_what_waits_is_kept_to_the_last() -> None:
    scheduler = scheduler_of(60, max_num_seqs=1)
    chat, other = Chat(scheduler, [1] * 60), Chat(scheduler, [3] * 60)
    chat.turn(0.0, "a")
    other.turn(1.0, "c")
    scheduler.submit(Request("long", [2] * 120, max_tokens=8), 2.0)
    scheduler.submit(Request("a again", [*chat.tokens, 7], max_tokens=1), 2.0)
    finish(scheduler, 2.0)
    assert scheduler.stats.prefix_hits == 68, "the older of two sessions was the one that waited"


def test_a_shared_beginning_outlives_what_goes_on_behind_it() -> None:
    scheduler = scheduler_of(60)
    system = [5] * 40
    for number in range(6):
        chat = Chat(scheduler, list(system), own=number)
        found = chat.turn(float(number), f"{number}", more=20)
        assert found == (40 if number else 0)
        Chat(scheduler, [100 + number] * 60).turn(number + 0.5, f"other {number}")


def test_outputs_that_no_prompt_repeats_go_first() -> None:
    scheduler = scheduler_of(200)
    tokens = [1] * 40
    for turn in range(100):
        request = Request(f"{turn}", list(tokens), max_tokens=12)
        scheduler.submit(request, float(turn))
        finish(scheduler, float(turn))
        tokens = [*(tokens[:40] if len(tokens) > 300 else tokens), *[turn + 50] * 4]
    assert order_of(scheduler)._outputs_reused < 0.6


def test_an_unusual_pause_moves_a_pace_little() -> None:
    session = Session()
    for _ in range(8):
        session.learn(4.0)
    session.learn(4000.0)
    assert 2**session.pace < 6.0
    assert session.turns == 9


def test_orders_are_found_by_name() -> None:
    assert type(load(CacheConfig(), StoppedClock())) is Lru
    path = "paceline.kv.evictions.sessions.Sessions"
    for name in ("sessions", path):
        assert type(load(CacheConfig(eviction=name), StoppedClock())) is Sessions
    with pytest.raises(ConfigError, match="no eviction 'fifo': there are lru, sessions"):
        load(CacheConfig(eviction="fifo"), StoppedClock())
    with pytest.raises(ConfigError, match="remove one of the settings"):
        CacheConfig(eviction="sessions", free_order="lru")


def test_what_was_learned_is_part_of_a_recording() -> None:
    """A scheduler that continues from its written state makes the same plans."""
    one = scheduler_of(60)
    serve(one, range(60))
    state = SchedulerCheckpoint(vars(one), PlansInFlight()).encoded(one.config)
    other = SchedulerCheckpoint.decoded(state, one.config).scheduler()
    for scheduler in (one, other):
        serve(scheduler, range(60, 120))
    assert one.stats == other.stats
    assert one.snapshot() == other.snapshot()


def serve(scheduler: Scheduler, numbers: range) -> None:
    for number in numbers:
        prompt = [number % 3] * 4 + [number % 7] * (20 + 37 * number % 80)
        name = f"s{number % 7}"
        scheduler.submit(Request(f"{number}", prompt, max_tokens=4, session=name), float(number))
        finish(scheduler, float(number))
