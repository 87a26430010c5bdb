"""Runs to record: random ones full of trouble, and a small one to take apart."""

import json
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from paceline import PacelineError, Plan, Request, StepResult
from paceline.core.capabilities import StepCost, StepTimes
from paceline.core.plan import Candidates, Failed, Forced
from paceline.sched.replay.checkpoint import stand_in
from paceline.sched.replay.reader import Reader
from paceline.sched.replay.recorded_scheduler import RecordedScheduler
from paceline.sched.replay.records import FORMAT, FORMAT_NUMBER, MAGIC, RecordKind, record
from paceline.sched.transfers.swapping import Rates

POLICIES = ("fcfs", "priority", "shortest", "deadline", "fair")


def settings(r: Random) -> dict[str, Any]:
    slots, length, size = r.randint(1, 8), r.randint(12, 64), r.choice([1, 2, 4, 8])
    least = -(-length // size)
    groups: list[dict[str, Any]] = [{"kind": "full"}]
    if size == 2:
        groups += [{"kind": "sliding_window", "window": 5}]
    made = {
        "max_num_seqs": slots,
        "max_model_len": length,
        "block_size": size,
        "num_blocks": r.randint(least, least * 2) * len(groups),
        "attention_groups": groups,
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
        "discipline": r.choice(["unified", "prefill_first"]),
        "max_wait": r.choice([0.0, 1.0]),
        "preemption_mode": r.choice(["swap", "swap", "auto"]),
        "swap_space": r.choice([1, 3 * least, 3 * least]),
    }
    if size == 1:
        made |= {"state_blocks": 2, "num_speculative_tokens": 0, "lookahead_slots": 0}
        made |= {"preemption_mode": "recompute", "swap_space": 0}
    return made


def family(r: Random) -> dict[str, Any]:
    """What makes a request one of several sequences, for some."""
    several: list[dict[str, Any]] = [
        {"n": 2},
        {"n": 1, "best_of": 2},
        {"n": 2, "beam_width": 3, "length_penalty": 0.5, "early_stopping": "never"},
    ]
    return r.choice([{}, {}, *several])


class Trouble:
    """A seeded run through a recorder: every call there is, in any order, some of them wrong."""

    def __init__(
        self, seed: int, path: Path, turns: int = 80, depth: int = 3, new_file: float = 0.0
    ) -> None:
        """`new_file` is the chance that a turn ends the file of the recording between two calls."""
        self.random = r = Random(seed)
        self.new_file, self.moments = new_file, Random(seed)
        self.recorder = RecordedScheduler.create(record=str(path), record_files=1000, **settings(r))
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
        self.recorder.use_weights("other", self.now)
        self._plan()
        self._settle()

    def _turn(self) -> None:
        r, calls = self.random, self.recorder
        self.now += r.choice([0.0, 0.1, 1.0, -0.5, 5.0])
        for chance, trouble in (
            (0.4, self._submit),
            (0.06, lambda: calls.abort(self._someone(), self.now)),
            (0.06, lambda: calls.abort(self._someone(), self.now, r.randint(0, 2))),
            (0.06, lambda: calls.park(self._someone(), r.choice(["grammar", "x", ""]), self.now)),
            (0.1, lambda: calls.wake(self._someone(), self.now)),
            (0.03, lambda: calls.pause(r.choice(["new", "all"]))),
            (0.15, calls.resume),
            (0.03, lambda: calls.reset_prefix_cache(r.random() < 0.5, self.now)),
            (0.03, calls.reset_prefix_cache),
            (0.05, lambda: calls.measure(Rates(r.choice([1.0, 1e6]), r.choice([1.0, 1e6])))),
            (0.05, lambda: calls.measure_steps(self._step_times())),
            (0.05, lambda: calls.measure_cost(StepCost(r.choice([1, 10**8]), r.choice([0, 9])))),
            (0.1, self._misuse),
            (0.03, lambda: self._lose(calls.retry)),
            (0.02, lambda: self._lose(calls.fail)),
        ):
            if r.random() < chance:
                self._try(trouble)
        self._plan()
        if self.moments.random() < self.new_file:
            self.recorder.recording.next_file()
        while len(self.flight) >= self.depth or (self.flight and r.random() < 0.3):
            self._commit()

    def _step_times(self) -> StepTimes:
        r = self.random
        plain, drafted = (
            tuple((size, r.uniform(0.1, 1.0) + r.random() * size) for size in (1, 4, 9))
            for _ in range(2)
        )
        least = drafted if r.random() < 0.5 else ()
        return StepTimes(plain, drafted, least, (4, 9) if least else ())

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
            **family(r),
        )
        self.ids.append(name)
        self.recorder.submit(request, self.now, r.choice(["", "", "", "grammar"]))

    def _misuse(self) -> None:
        """A result with impossible counts or shapes, or for a step that is not in flight."""
        r = self.random
        plan = r.choice([*self.flight, *self.past[-4:], stand_in(9999, 2)])
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
        if not plan.empty:
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
        shape = len(rows), 1 + max(rows.drafts.tolist(), default=0)
        ids = np.array([r.randrange(9) for _ in range(shape[0] * shape[1])], np.int32)
        sampling = np.flatnonzero(rows.samples).tolist()
        failed = r.sample(sampling, 1) if sampling and r.random() < 0.05 else []
        count[failed] = 0
        lost = tuple(Failed(row, "no numbers") for row in failed)
        right = np.maximum(count - 1, 0)
        drafts = np.array([*map(r.randint, right.tolist(), rows.drafts.tolist())], np.int32)
        said = {"failed": lost, "computed_drafts": r.choice([None, drafts])}
        if (rows.child < 0).all():
            return StepResult(ids.reshape(shape), count, **said, forced=self._forced(plan, count))
        scores = np.array([-r.random() for _ in ids], np.float32)
        found = self._candidates(len(rows))
        return StepResult(ids.reshape(shape), count, scores.reshape(shape), found, **said)

    def _forced(self, plan: Plan, count: np.ndarray) -> tuple[Forced, ...]:
        """Tokens behind what a row samples, where no drafts are in flight."""
        ahead, r = self.recorder.view.ahead(plan.rows), self.moments
        rows = np.flatnonzero((count > 0) & (ahead >= 0) & (ahead <= 1)).tolist()
        return (Forced(r.choice(rows), (4, 3, 2)),) if rows and r.random() < 0.1 else ()

    def _candidates(self, rows: int) -> Candidates:
        """All tokens there are, for every row."""
        r = self.random
        ids = [r.sample(range(9), 9) for _ in range(rows)]
        scores = [sorted((-r.random() for _ in range(9)), reverse=True) for _ in range(rows)]
        return Candidates(np.array(ids, np.int32), np.array(scores, np.float32))

    def _settle(self) -> None:
        """Let what is there run on for a while without trouble, and nothing new in."""
        self.recorder.drain()
        self.recorder.resume()
        for _ in range(40):
            self.now += 0.1
            self._plan()
            while self.flight:
                self._commit()


def small_run(path: Path, steps: int = 12, **other: Any) -> RecordedScheduler:
    """Three requests that compete for two slots and few blocks."""
    recorder = RecordedScheduler.create(
        **{"max_num_seqs": 2, "max_num_batched_tokens": 16, "max_model_len": 32} | other,
        num_blocks=8,
        block_size=4,
        record=str(path),
    )
    for number, priority in enumerate((2, 1, 0)):
        prompt = np.arange(5 + number)
        request = Request(id=f"r{number}", prompt=prompt, max_tokens=6, priority=priority)
        recorder.submit(request, now=0.5 * number)
    for step in range(steps):
        plan = recorder.plan(now=2.0 + step)
        tokens = {str(name): [7] for name in plan.rows.request_id[plan.rows.samples]}
        recorder.commit(plan, StepResult.of(plan, tokens), now=2.5 + step)
    return recorder


# -- recordings taken apart --------------------------------------------------


def sound_records(path: Path) -> list[bytes]:
    return [record(found.kind, found.payload) for found in Reader(path)]


def settings_of(path: Path) -> dict[str, Any]:
    return Reader(path).preamble.config.to_dict()


def with_settings(path: Path, changed: dict[str, Any], number: int = FORMAT) -> None:
    """The same calls under other settings."""
    content = json.dumps({"paceline": "0.0.1", "settings": changed}).encode()
    head = MAGIC + FORMAT_NUMBER.pack(number) + record(RecordKind.SETTINGS, content)
    path.write_bytes(b"".join([head, *sound_records(path), record(RecordKind.ENDED, b"closed")]))
