"""Targets are kept for as many requests as possible: pace, due times, shedding, ageing, victims."""

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from paceline import Request, Scheduler, StepResult
from paceline.core.errors import TOO_LATE
from paceline.sched.policies.slo import TURN, DueList, Unfinished
from paceline.sched.service.promises import CAUSES
from paceline.sched.service.step_model import StepLoad

BASE_S, POSITION_S = 0.008, 5e-5  # a device that computes 20,000 positions a second


class Bench:
    """A scheduler on a device with known step times."""

    def __init__(self, **settings: Any) -> None:
        given = {"policy": "slo", "max_num_seqs": 32, "max_num_batched_tokens": 4096}
        self.scheduler = Scheduler.create(**given | settings)
        self.now = 0.0
        self.ended: dict[str, str] = {}
        self.tokens: dict[str, list[float]] = {}  # when each request got tokens
        self.steps: list[float] = []  # seconds of each
        for size in (1, 8, 64, 256, 1024, 4096):
            for _ in range(6):
                self.times.learn(StepLoad(1, size, 0, 2), self.seconds(size))
                self.times.learn(StepLoad(size, size), self.seconds(size))

    @property
    def times(self) -> Any:
        return self.scheduler.state.times

    @staticmethod
    def seconds(positions: int) -> float:
        return BASE_S + POSITION_S * positions

    def ask(self, name: str, prompt: int, outputs: int = 4, **more: Any) -> None:
        first = 7919 * (len(self.tokens) + 1)
        self.tokens[name] = []
        request = Request(id=name, prompt=range(first, first + prompt), max_tokens=outputs, **more)
        self.scheduler.submit(request, self.now)

    def turn(self) -> Any:
        plan = self.scheduler.plan(self.now)
        taken = self.seconds(plan.total) if plan.total else 0.001
        self.now += taken
        self.steps.append(taken)
        sampled = zip(plan.rows.labels, plan.rows.samples.tolist(), strict=True)
        result = StepResult.of(plan, {name: [9] for name, samples in sampled if samples})
        outputs = self.scheduler.commit(plan, result, self.now)
        if not len(self.steps) % 16:
            self.scheduler.check()
        for name, one in outputs.to_dict().items():
            self.tokens[name] += [self.now] * len(one["tokens"])
            if one["finish"]:
                self.ended[name] = one["finish"]
        return plan

    def run(self, *names: str) -> None:
        """Until these have ended, or all."""
        while set(names or self.tokens) - self.ended.keys():
            self.turn()


# -- pace -------------------------------------------------------------------


def test_a_long_prompt_does_not_hold_up_those_who_decode() -> None:
    bench = Bench(itl_target_ms=40.0, ttft_target_ms=2000.0)
    for name in "abc":
        bench.ask(name, 50, outputs=100)
    for _ in range(5):
        bench.turn()
    del bench.steps[:]
    bench.ask("long", 4000)
    bench.run("long")
    assert max(bench.steps) < 0.040
    assert sum(bench.steps) < 0.5  # its 4,000 positions take 0.2 s alone
    bench.run()
    assert bench.scheduler.stats.slo_attained == 4
    bench.ask("alone", 4000)
    assert bench.turn().total < 1000  # it is cut as before: another one may come meanwhile


def test_without_targets_steps_are_filled() -> None:
    bench = Bench()
    bench.ask("a", 50, outputs=50)
    bench.turn()
    bench.ask("long", 4000)
    assert bench.turn().total == 4001


def test_a_pace_that_no_step_can_keep_limits_nothing() -> None:
    bench = Bench(itl_target_ms=1.0, ttft_target_ms=2000.0)
    bench.ask("a", 50, outputs=50)
    bench.turn()
    bench.ask("long", 3000)
    assert bench.turn().total > 2000


# -- due times --------------------------------------------------------------


def test_prompts_are_computed_by_due_time_whatever_their_length() -> None:
    """A stream of short prompts does not starve a long one that can be in time."""
    bench = Bench(itl_target_ms=40.0, ttft_target_ms=1000.0)
    bench.ask("pace", 20, outputs=300)
    bench.turn()
    bench.ask("long", 3500, outputs=2)
    for number in range(60):
        bench.ask(f"s{number}", 300, outputs=2, deadline=1.5)
        bench.turn()
    bench.run("long")
    assert bench.tokens["long"][0] < 1.0
    bench.run(*(f"s{number}" for number in range(60)))
    assert bench.scheduler.stats.slo_missed == 0


def test_the_fewest_requests_are_late() -> None:
    """Against a search through all subsets, by Moore and Hodgson's theorem."""
    random = Random(3)
    for _ in range(200):
        jobs = [(random.randint(1, 9), random.randint(2, 25)) for _ in range(random.randint(1, 7))]
        listed = DueList(lambda sequence: 0.0, {})
        prompts = [Unfinished(float(due), at, work, "") for at, (work, due) in enumerate(jobs)]
        listed.strike(prompts, 0.0, 0.0, 1.0)
        kept = len(jobs) - len(listed.late)
        assert kept == max(
            bin(chosen).count("1") for chosen in range(2 ** len(jobs)) if in_time(jobs, chosen)
        )


def in_time(jobs: list[tuple[int, int]], chosen: int) -> bool:
    end = 0
    for work, due in sorted(
        (job for at, job in enumerate(jobs) if chosen >> at & 1), key=lambda job: job[1]
    ):
        end += work
        if end > due:
            return False
    return True


@pytest.mark.parametrize(("weight", "late"), [(1.0, {1, 3}), (9.0, {0})])
def test_the_tenant_that_has_most_is_late(weight: float, late: set[int]) -> None:
    """Not the longest prompt, if it is all that its tenant asks for."""
    listed = DueList(lambda sequence: 0.0, {"flood": weight})
    jobs = [(5, "quiet"), (3, "flood"), (2, "flood"), (4, "flood")]
    prompts = [Unfinished(9.0, at, work, tenant) for at, (work, tenant) in enumerate(jobs)]
    listed.strike(prompts, 0.0, 0.0, 1.0)
    assert listed.late == late


def test_what_a_tenant_was_given_counts_for_a_while() -> None:
    for now, late in ((1.0, 0), (100.0, 1)):
        listed = DueList(lambda sequence: 0.0, {})
        listed.use.add("flood", 100, 0.0)
        prompts = [Unfinished(now + 9.0, 0, 5, "flood"), Unfinished(now + 9.0, 1, 6, "quiet")]
        listed.strike(prompts, now, now, 1.0)
        assert listed.late == {late}


def test_who_cannot_be_in_time_goes_behind_who_can() -> None:
    bench = Bench(itl_target_ms=40.0, ttft_target_ms=300.0)
    bench.ask("first", 100, outputs=4)
    bench.turn()
    for number in range(12):
        bench.ask(f"large{number}", 2500, outputs=2)
        bench.ask(f"small{number}", 200, outputs=2)
    bench.run()
    small = [bench.tokens[f"small{number}"][0] for number in range(12)]
    assert sum(one < 0.31 for one in small) >= 11
    assert bench.scheduler.stats.slo_attained >= 12


@pytest.mark.parametrize("refuse", [True, False])
def test_overload_is_refused_at_once_if_asked_for(refuse: bool) -> None:
    bench = Bench(itl_target_ms=40.0, ttft_target_ms=300.0, refuse_late=refuse)
    for number in range(40):
        bench.ask(f"r{number}", 1000, outputs=2)
    for _ in range(5):
        bench.turn()
    refused = [name for name, finish in bench.ended.items() if finish == "timeout"]
    assert (len(refused) > 10) == refuse
    bench.run()
    stats = bench.scheduler.stats
    assert stats.slo_attained + stats.slo_missed == 40
    assert stats.slo_attained >= 3
    if refuse:
        assert TOO_LATE in bench.scheduler.explain(refused[0])
        assert stats.slo_missed_queue >= len(refused)


# -- no starvation ------------------------------------------------------------


def endless(bench: Bench) -> Iterator[None]:
    """Three times as many short requests as the device can compute."""
    sent, until = 0, bench.now
    while True:
        while until <= bench.now:
            bench.ask(f"short{sent}", 300, outputs=2)
            sent, until = sent + 1, until + 300 * POSITION_S / 3
        yield


def test_an_aged_request_waits_a_bounded_number_of_positions() -> None:
    """It waits at most until `TURN` times its own prompt was admitted: none aged before it."""
    bench = Bench(itl_target_ms=40.0, ttft_target_ms=200.0, ageing_s=0.5)
    stream = endless(bench)
    bench.ask("pace", 20, outputs=400)
    next(stream)
    bench.turn()
    bench.ask("outcast", 3500, outputs=2)  # beside the others it cannot be in time
    table = bench.scheduler.state.table
    admitted: list[float] = []
    counted = 0
    while "outcast" not in bench.ended:
        next(stream)
        plan = bench.turn()
        if bench.now > 0.6 and not admitted:
            counted += sum(len(new.tokens) for new in plan.admitted)
        if "outcast" in table.name.tolist() and not admitted:
            admitted.append(bench.now)
    assert counted <= TURN * 3500
    assert bench.now < 0.5 + 2 * TURN * 3500 * POSITION_S
    kept = bench.scheduler.stats.slo_attained * 300 * POSITION_S / bench.now
    assert kept > 0.5  # of the device's time went to requests that were in time all the same


# -- victims ------------------------------------------------------------------


def test_a_late_resident_gives_way_first() -> None:
    bench = Bench(num_blocks=24, block_size=16, max_model_len=200)
    bench.ask("late", 100, outputs=90, deadline=0.001)
    bench.turn()
    bench.ask("in time", 100, outputs=90, deadline=5.0)
    bench.ask("also", 100, outputs=90, deadline=5.0)
    preempted = [name for _ in range(120) for name in bench.turn().preempted]
    assert preempted[0] == "late"
    bench.run()
    assert bench.scheduler.stats.slo_missed_device == 1


# -- verdicts -----------------------------------------------------------------


def test_a_miss_has_its_cause() -> None:
    """With first come, first served: the targets are judged under every policy."""
    bench = Bench(policy="fcfs", ttft_target_ms=100.0, itl_target_ms=40.0, max_num_seqs=2)
    bench.ask("kept", 100, outputs=3)
    bench.ask("interrupted", 100, outputs=60)
    bench.turn()
    bench.ask("too long", 3000, outputs=2)
    bench.ask("behind", 100, outputs=2)
    bench.run()
    told = {name: bench.scheduler.explain(name) for name in bench.tokens}
    assert "missed" not in told["kept"]
    assert (
        "missed its target: 1 of 59 gaps were longer than 40 ms (interference)"
        in (told["interrupted"])
    )
    assert "alone its prompt takes 1" in told["too long"]
    assert "(device)" in told["too long"]
    assert "of it in the queue (queue)" in told["behind"]
    stats = bench.scheduler.stats
    assert stats.slo_attained == 1
    assert [getattr(stats, f"slo_missed_{cause}") for cause in CAUSES] == [1, 1, 0, 1]


def test_a_request_that_its_client_aborts_is_not_judged() -> None:
    bench = Bench(ttft_target_ms=100.0)
    bench.ask("gone", 100)
    bench.turn()
    bench.scheduler.abort("gone", bench.now)
    assert (bench.scheduler.stats.slo_attained, bench.scheduler.stats.slo_missed) == (0, 0)
    assert not bench.scheduler.state.promises.open
