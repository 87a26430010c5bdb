"""Courses: a policy driven through a whole run, on a pool that is always full, and watched."""

import json
import os
import pkgutil
import sys
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from random import Random
from typing import Any

import numpy as np

from paceline import Outputs, Plan, Request, Scheduler, StepResult
from paceline.sched import policies
from paceline.testing.oracle import OracleRunner
from paceline.testing.reference import reference

VOCAB = 50
STEP_S = 1.0
TIGHT: dict[str, Any] = {
    "max_num_seqs": 4,
    "max_num_batched_tokens": 16,
    "max_model_len": 64,
    "num_blocks": 16,
    "block_size": 4,
    "long_prefill_token_threshold": 8,
}

# What else there is to switch on, by policy. Every policy also runs without.
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "priority": [{"preempt_on_arrival": True}, {"preempt_on_arrival": True, "ageing_s": 5.0}],
    "shortest": [{"ageing_s": 5.0}],
    "longest": [
        {"ageing_s": 5.0},
        {"fill_positions": 6, "long_prefill_token_threshold": 0},
        {"ageing_s": 5.0, "fill_positions": 2, "long_prefill_token_threshold": 0},
    ],
    "deadline": [{"refuse_late": True}, {"default_deadline_s": 2.0, "prefill_tokens_per_s": 4.0}],
    "fair": [{"tenant_weights": {"a": 3.0, "b": 0.5}, "input_token_weight": 0.0}],
}


# -- which policies there are -----------------------------------------------


def found() -> list[str]:
    """Every module in `paceline.sched.policies`, and the dotted paths in PACELINE_POLICIES."""
    modules = sorted(module.name for module in pkgutil.iter_modules(policies.__path__))
    return modules + os.environ.get("PACELINE_POLICIES", "").split()


@dataclass(frozen=True, slots=True)
class Variant:
    """A policy with settings that concern it."""

    policy: str
    settings: Mapping[str, Any]

    def __str__(self) -> str:
        said = [f"{name}={value}" for name, value in self.settings.items()]
        return "-".join([self.policy, *said])

    def scheduler(self, **settings: Any) -> Scheduler:
        return Scheduler.create(**self._all(settings))

    def watched(self, **settings: Any) -> "Watched":
        return Watched.create(**self._all(settings))

    def _all(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        return TIGHT | {"policy": self.policy} | dict(self.settings) | dict(settings)


def variants() -> Iterator[Variant]:
    for policy in found():
        for options in [{}, *OPTIONS.get(policy, [])]:
            for victim in ("cheapest",) if options else ("newest", "cheapest"):
                yield Variant(policy, {"victim": victim} | options)
        yield Variant(policy, {"discipline": "prefill_first"})


def patience_s(policy: str, **settings: Any) -> float:
    """How long a request waits at most before it goes first, infinite where age does not count."""
    return Scheduler.create(policy=policy, **settings).state.policy.patience_s


# -- a run ------------------------------------------------------------------


class Watched(Scheduler):
    """A scheduler that verifies every invariant after every call that changes it."""

    def submit(self, request: Request, now: float, parked: str = "") -> None:
        super().submit(request, now, parked)
        self.check()

    def abort(self, request_id: str, now: float) -> bool:
        done = super().abort(request_id, now)
        self.check()
        return done

    def park(self, request_id: str, reason: str, now: float) -> bool:
        done = super().park(request_id, reason, now)
        self.check()
        return done

    def wake(self, request_id: str, now: float) -> bool:
        done = super().wake(request_id, now)
        self.check()
        return done

    def plan(self, now: float) -> Plan:
        plan = super().plan(now)
        self.check()
        return plan

    def commit(self, plan: Plan, result: StepResult, now: float) -> Outputs:
        outputs = super().commit(plan, result, now)
        self.check()
        return outputs


@dataclass(slots=True)
class Course:
    """A scheduler and an oracle that turn until nobody is left; everything is written down.

    A step takes one second. `depth` steps are planned ahead of their results.
    """

    scheduler: Scheduler
    depth: int = 1
    now: float = 0.0
    runner: OracleRunner = field(init=False)
    requests: dict[str, Request] = field(default_factory=dict[str, Request])
    submitted_at: dict[str, float] = field(default_factory=dict[str, float])
    admitted_at: dict[str, float] = field(default_factory=dict[str, float])  # for the first time
    admissions: list[str] = field(default_factory=list[str])  # the first of each, in order
    preempted: list[str] = field(default_factory=list[str])
    plans: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    got: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    ends: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    served: dict[str, dict[str, int]] = field(default_factory=lambda: defaultdict(dict))
    flight: deque[tuple[Plan, StepResult]] = field(default_factory=deque[tuple[Plan, StepResult]])

    def __post_init__(self) -> None:
        cache, step = self.scheduler.config.cache, self.scheduler.config.speculation
        accept = 0.6 if step.num_speculative_tokens else 0.0
        self.runner = OracleRunner(cache.num_blocks, cache.block_size, VOCAB, accept)

    def submit(self, request: Request, parked: str = "") -> None:
        self.scheduler.submit(request, self.now, parked)
        self.requests[request.id] = request
        self.submitted_at[request.id] = self.now

    def turn(self) -> Plan:
        """Plan a step, and take the oldest result once the pipeline is full or idle."""
        plan = self.scheduler.plan(self.now)
        self.plans.append(plan.to_dict())
        self.preempted += plan.preempted
        result = self.runner.run(plan)
        for new in plan.admitted:
            if not new.resumed:
                self.admissions.append(new.request.id)
                self.admitted_at[new.request.id] = self.now
                self._serve(new.request.tenant, "input", len(new.tokens) - new.computed)
        self.flight.append((plan, result))
        if len(self.flight) >= self.depth or not len(plan.rows):
            self.land()
        return plan

    def land(self) -> None:
        self.now += STEP_S
        plan, result = self.flight.popleft()
        outputs = self.scheduler.commit(plan, result, self.now)
        for name, told in outputs.to_dict().items():
            assert not self.ends[name], f"{name} got something after its end"
            self.got[name] += told["tokens"]
            self._serve(self.requests[name].tenant, "output", len(told["tokens"]))
            if told["finish"]:
                self.ends[name].append(told["finish"])

    def _serve(self, tenant: str, kind: str, tokens: int) -> None:
        account = self.served[tenant]
        account[kind] = account.get(kind, 0) + tokens

    def abort(self, name: str) -> None:
        if self.scheduler.abort(name, self.now):
            self.ends[name].append("abort")

    def settle(self, most_turns: int) -> int:
        """Turn until all have ended; returns the number of turns that it took."""
        for turns in range(most_turns + 1):
            if self.scheduler.idle:
                self.hear()
                return turns
            self.turn()
        raise AssertionError(f"{self.scheduler.unfinished} requests left after {most_turns} turns")

    def hear(self) -> None:
        """Let the ends be told that happened outside of a commit."""
        while self.flight:
            self.land()
        self.turn()

    # -- asking -------------------------------------------------------------

    @property
    def waiting(self) -> int:
        return len(self.scheduler.state.queue)

    def preemptions(self, name: str) -> int:
        return self.preempted.count(name)

    def unequal(self) -> dict[str, str]:
        """Requests whose tokens or whose end are not the reference's; should be empty."""
        wrong: dict[str, str] = {}
        length = self.scheduler.config.step.max_model_len
        for name, request in self.requests.items():
            tokens, finish = reference(request, VOCAB, length)
            got, ends = self.got[name], self.ends[name]
            whole = ends == [finish] and got == tokens
            cut = ends in (["abort"], ["error"], ["timeout"]) and got == tokens[: len(got)]
            if not (whole or cut):
                wrong[name] = f"{got} {ends}, not {tokens} {finish}"
        return wrong

    def digest(self) -> str:
        """Every plan, bit for bit, in a few letters."""
        text = json.dumps(self.plans).encode()
        return blake2b(text, digest_size=16).hexdigest()


# -- what is asked of it ----------------------------------------------------


def invent(seed: int, number: int = 16, **more: Any) -> list[Request]:
    """Requests that differ in everything a policy may look at, some with a common prefix."""
    r = Random(seed)
    common = [r.randrange(VOCAB) for _ in range(24)]
    requests: list[Request] = []
    for index in range(number):
        prompt = common[: r.choice([0, 8, 16, 24])]
        prompt += [r.randrange(VOCAB) for _ in range(r.randint(1, 16))]
        requests.append(
            Request(
                id=f"r{index}",
                prompt=np.array(prompt, np.int32),
                max_tokens=r.randint(1, 20),
                eos_token_ids=(2,) if r.random() < 0.3 else (),
                priority=r.randint(0, 3),
                tenant=r.choice(["a", "b", "c"]),
                deadline=r.choice([None, 3.0, 15.0, 60.0]),
                token_deadline=r.choice([None, 1.0]),
                **more,
            )
        )
    return requests


def arrive(course: Course, requests: Iterable[Request], seed: int, per_turn: float = 0.5) -> None:
    """Let requests come in, some turns apart."""
    r = Random(seed)
    for request in requests:
        course.submit(request)
        while r.random() > per_turn:
            course.turn()


def disturb(course: Course, requests: Iterable[Request], seed: int) -> None:
    """Let requests come in while some are parked, woken and aborted, wherever they are."""
    r = Random(seed)
    for request in requests:
        course.submit(request, parked=r.choice(["", "", "", "grammar"]))
        while r.random() < 0.6:
            course.turn()
            names = list(course.requests)
            if r.random() < 0.1:
                course.abort(r.choice(names))
            if r.random() < 0.3:
                course.scheduler.park(r.choice(names), "remote_kv", course.now)
            if r.random() < 0.5:
                course.scheduler.wake(r.choice(names), course.now)
    for name in course.requests:
        course.scheduler.wake(name, course.now)


def eventful(variant: Variant) -> Course:
    """A run with everything in it, the same each time."""
    course = Course(variant.scheduler(), depth=2)
    disturb(course, invent(5), seed=5)
    course.settle(5_000)
    return course


# -- an adversary -----------------------------------------------------------

BACKLOG = 6  # requests that wait at all times, whatever is served
OUTCAST = (48, 8)  # its prompt and its outputs
LONGEST_ATTACK = (4, 16)  # the same, of the longest in the stream
LONGEST_GIANT = (24, 16)
CHUNK = 2  # a long prompt takes many steps, and may be pushed out in each of them


@dataclass(slots=True)
class Siege:
    """An endless stream of requests, each better in every respect than one that waits.

    The stream never lets fewer than BACKLOG requests wait, so a policy that always
    prefers the better never gets to `outcast`.
    """

    course: Course
    outcast: Request
    attacker: Callable[[int], Request]
    sent: int = 0

    def step(self) -> None:
        while self.course.waiting - (not self.admitted) < BACKLOG:
            self.sent += 1
            self.course.submit(self.attacker(self.sent))
        self.course.turn()

    @property
    def admitted(self) -> bool:
        return self.outcast.id in self.course.admitted_at

    @property
    def ended(self) -> bool:
        return bool(self.course.ends[self.outcast.id])

    def run(self, until: Callable[["Siege"], bool], most_steps: int) -> "Siege":
        for _ in range(most_steps):
            self.step()
            if until(self):
                break
        return self

    @property
    def overtakers(self) -> list[str]:
        """Those that came later and were admitted earlier."""
        order = list(self.course.requests)
        later = set(order[order.index(self.outcast.id) + 1 :])
        ahead = self.course.admissions
        if self.admitted:
            ahead = ahead[: ahead.index(self.outcast.id)]
        return [name for name in ahead if name in later]


def attacker(number: int, tenant: str = "") -> Request:
    """Short, urgent, important, and unlike any other."""
    r = Random(number)
    return Request(
        id=f"s{number}",
        prompt=np.array([number, *(r.randrange(VOCAB) for _ in range(r.randint(0, 3)))], np.int32),
        max_tokens=r.randint(6, 16),
        priority=0,
        tenant=tenant or "ab"[number % 2],
        deadline=0.5,
    )


def giant(number: int) -> Request:
    """Everything that an attacker is not, for policies that prefer that."""
    r = Random(number)
    prompt = [number, *(r.randrange(VOCAB) for _ in range(r.randint(19, LONGEST_GIANT[0] - 1)))]
    return Request(
        id=f"g{number}",
        prompt=np.array(prompt, np.int32),
        max_tokens=r.randint(6, LONGEST_GIANT[1]),
        priority=9,
        tenant="ab"[number % 2],
    )


def dwarf() -> Request:
    """What an endless stream of giants may overtake."""
    return Request(id="dwarf", prompt=np.array([999], np.int32), max_tokens=2, deadline=0.5)


def outcast(name: str = "outcast") -> Request:
    """Long, without a deadline, and of the least importance."""
    prompt = np.arange(1000, 1000 + OUTCAST[0], dtype=np.int32)
    return Request(id=name, prompt=prompt, max_tokens=OUTCAST[1], priority=9, tenant="outcast")


def alone_steps(prompt: int, outputs: int, chunk: int) -> int:
    """Steps that a request takes at most while it is the oldest resident, from nothing."""
    return -(-(prompt + outputs) // chunk) + outputs


if __name__ == "__main__":  # the determinism test asks another process
    json.dump({str(one): eventful(one).digest() for one in variants()}, sys.stdout)
