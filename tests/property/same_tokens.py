"""Random schedules on a real model, of which every token keeps the bits of its log-probability."""

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from paceline import Request, Scheduler, StepResult
from paceline.core.plan import Outputs, Plan
from paceline.core.request import child_label
from paceline.core.sampling import Sampling

POLICIES = ("fcfs", "priority", "shortest", "deadline", "fair", "longest")
SHARED, LENGTH = 21, 64  # tokens of a common prefix, and of the longest sequence
RunnerOf = Callable[[Scheduler], Any]


@dataclass
class Scores:
    """The log-probabilities of tokens as bytes, by request and position, however often they were
    computed. `changed` lists those that came with other bits than before."""

    tokens: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    bits: dict[tuple[str, int], bytes] = field(default_factory=dict[tuple[str, int], bytes])
    wanted: set[str] = field(default_factory=set[str])  # requests with logprobs
    changed: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])

    def add(self, label: str, position: int, *values: Any) -> None:
        bits = b"".join(value.tobytes() for value in values)
        if self.bits.setdefault((label, position), bits) != bits:
            self.changed.append((label, position))

    def see(self, result: StepResult, outputs: Outputs) -> None:
        """Add the tokens of a committed step."""
        rows = range(len(outputs.count)) if outputs.row is None else outputs.row.tolist()
        for index, row in enumerate(rows):
            name = outputs.request_id[index]
            label = child_label(name, int(outputs.child[index]))
            known, count = self.tokens.setdefault(label, []), int(outputs.count[index])
            for offset in range(count if name in self.wanted else 0):
                assert result.logprob is not None
                self.add(label, len(known) + offset, result.logprob[row, offset])
            if count and name in self.wanted:
                assert result.candidates is not None
                best = result.candidates
                self.add(label + " best", len(known), best.ids[row, :2], best.logprob[row, :2])
            known += outputs.ids[index, :count].tolist()
        for scores in result.prompt:
            for at, value in enumerate(scores.logprob, scores.first):
                self.add(f"{scores.request_id} prompt", at, value)


@dataclass
class Schedule:
    """Settings and requests that follow from a seed."""

    seed: int
    adapters: Sequence[str] = ("",)
    changes: dict[str, Any] = field(default_factory=dict[str, Any])
    most_requests: int = 9
    most_tokens: int = LENGTH  # of an output
    seen: Counter[str] = field(default_factory=Counter[str])

    def settings(self) -> dict[str, Any]:
        r = Random(self.seed)
        size = r.choice([4, 8])
        least = -(-LENGTH // size)
        swapped = r.random() < 0.5
        return {
            "max_num_seqs": r.randint(3, 8),
            "max_model_len": LENGTH,
            "block_size": size,
            "num_blocks": r.randint(2 * least, 3 * least),
            "max_num_batched_tokens": r.choice([8, 16, 64]),
            "enable_prefix_caching": r.random() < 0.8,
            "policy": r.choice(POLICIES),
            "discipline": r.choice(["unified", "unified", "prefill_first"]),
            "preempt_on_arrival": r.random() < 0.5,
            "preemption_mode": "swap" if swapped else "recompute",
            "swap_space": 4 * least if swapped else 0,
            "num_speculative_tokens": r.choice([0, 2, 4]),
            "speculation": "fixed",
            "max_loras": 2 if len(self.adapters) > 1 else 0,
            **self.changes,
        }

    @property
    def depth(self) -> int:
        return Random(f"depth {self.seed}").randint(1, 3)

    def requests(self) -> list[Request]:
        r = Random(f"requests {self.seed}")
        return [self._request(r, number) for number in range(r.randint(5, 9))][: self.most_requests]

    def _request(self, r: Random, number: int) -> Request:
        random = Random(r.randint(0, 3))  # so that prompts begin alike
        shared = [random.randint(3, 50) for _ in range(r.choice([0, 8, SHARED]))]
        prompt = shared + [r.randint(3, 12) for _ in range(r.randint(1, 18))]
        return Request(
            id=f"r{number}",
            prompt=prompt,
            max_tokens=min(r.randint(3, LENGTH - len(prompt)), self.most_tokens),
            ignore_eos=True,
            seed=r.randint(0, 99),
            n=r.choice([1, 1, 1, 2]),
            priority=r.randint(0, 2),
            tenant=r.choice(["a", "b"]),
            adapter=r.choice(list(self.adapters)),
            sampling=Sampling(
                temperature=r.choice([0.0, 0.8]),
                top_p=r.choice([1.0, 0.9]),
                repetition_penalty=r.choice([1.0, 1.2]),
                logprobs=r.choice([2, 2, None]),
                prompt_logprobs=r.choice([None, None, 1]),
            ),
        )

    def together(self, runner_of: RunnerOf) -> Scores:
        """All requests in one run, a few of them late."""
        scheduler = Scheduler.create(**self.settings())
        found = driven(scheduler, runner_of(scheduler), self.requests(), self.depth)
        stats = scheduler.stats
        self.seen["drafted"] += stats.drafted
        self.seen["preempted"] += stats.preemptions
        self.seen["swapped"] += stats.swapped_in_blocks
        self.seen["cached"] += scheduler.snapshot()["prefix_hits"]
        return found

    def alone(self, runner_of: RunnerOf) -> Scores:
        """Each request in a run of its own, with room for all it wants and its prompt at once."""
        of_state = self.changes.get("state_blocks", 0)
        plain = {
            "max_num_seqs": 4,
            "max_num_batched_tokens": LENGTH,
            "max_model_len": LENGTH,
            "block_size": 8,
            "num_blocks": 64 + 4 * of_state,
            "state_blocks": of_state,
            "enable_prefix_caching": False,
            "max_loras": self.settings()["max_loras"],
        }
        whole = Scores()
        for request in self.requests():
            scheduler = Scheduler.create(**plain)
            own = driven(scheduler, runner_of(scheduler), [request])
            whole.tokens |= own.tokens
            whole.bits |= own.bits
            whole.changed += own.changed
        return whole


def driven(scheduler: Scheduler, runner: Any, asked: list[Request], depth: int = 1) -> Scores:
    """Run requests to their end; every second turn brings one of them."""
    found = Scores(wanted={one.id for one in asked if one.sampling.logprobs is not None})
    flight, waiting, now = deque[Plan](), deque(asked), 0.0
    while waiting or not scheduler.idle:
        if waiting and int(now) % 2 == 0:
            scheduler.submit(waiting.popleft(), now)
        now += 1.0
        plan = scheduler.plan(now)
        runner.launch(plan)
        if not plan.empty:
            flight.append(plan)
        elif not flight:
            scheduler.commit(plan, StepResult.of(plan, {}), now)
        if flight and (plan.empty or len(flight) == depth):
            result = runner.wait()
            found.see(result, scheduler.commit(flight.popleft(), result, now))
    scheduler.check()
    return found


def differences(schedule: Schedule, runner_of: RunnerOf) -> list[str]:
    """The tokens of a schedule whose bits are others than alone."""
    together, alone = schedule.together(runner_of), schedule.alone(runner_of)
    schedule.seen["tokens"] += len(alone.bits)
    wrong = [*together.changed, *alone.changed]
    wrong += [key for key, bits in together.bits.items() if alone.bits.get(key) != bits]
    wrong += [(name, -1) for name in together.tokens if together.tokens[name] != alone.tokens[name]]
    return [f"seed {schedule.seed}: {label} at {position}" for label, position in wrong]
