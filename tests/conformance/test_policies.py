"""What holds under every policy: conservation, progress, no starvation, the same plans, the same
output. A new file in `paceline.sched.policies` is found and judged without being named here;
`PACELINE_POLICIES="package.module.Class …"` adds policies from elsewhere.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any

import pytest

from paceline import Request
from paceline.sched.policies.slo import TURN
from tests.conformance import courses
from tests.conformance.courses import (
    BACKLOG,
    CHUNK,
    LONGEST_ATTACK,
    LONGEST_GIANT,
    OUTCAST,
    STEP_S,
    TIGHT,
    Course,
    Siege,
    Variant,
    alone_steps,
    arrive,
    attacker,
    disturb,
    dwarf,
    eventful,
    giant,
    invent,
    outcast,
    patience_s,
)

ROOT = Path(__file__).parents[2]
POLICIES = courses.found()
VARIANTS = list(courses.variants())
SLOTS: int = TIGHT["max_num_seqs"]

every_policy = pytest.mark.parametrize("policy", POLICIES)
every_variant = pytest.mark.parametrize("variant", VARIANTS, ids=str)


def test_the_policies_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {"fcfs", "priority", "shortest", "longest", "deadline", "fair"} <= set(POLICIES)
    monkeypatch.setenv("PACELINE_POLICIES", "some.module.Policy other.Policy")
    assert courses.found()[-2:] == ["some.module.Policy", "other.Policy"]


# -- conservation -----------------------------------------------------------


@every_variant
@pytest.mark.parametrize(("depth", "drafts"), [(1, 0), (3, 2)])
def test_every_block_is_in_one_state_and_every_request_ends_once(
    variant: Variant, depth: int, drafts: int
) -> None:
    """With the output of the reference, up to where it was aborted."""
    course = Course(variant.watched(num_speculative_tokens=drafts), depth)
    disturb(course, invent(1), seed=depth)
    course.settle(5_000)
    assert course.unequal() == {}
    assert course.preempted, "memory was never short, so this shows nothing"
    assert {name: len(ends) for name, ends in course.ends.items() if len(ends) != 1} == {}
    assert course.ends.keys() == course.requests.keys()
    pool = course.scheduler.state.cache.pool
    assert pool.free == pool.size, "blocks are held after the end"


# -- progress ---------------------------------------------------------------


class Attentive(Course):
    """Notices a step that does nothing although somebody could run."""

    def turn(self) -> Any:
        before = self.scheduler.snapshot()
        plan = super().turn()
        live = {*before["waiting"], *before["running"]} - set(plan.finished)
        assert len(plan.rows) or not live, f"step {plan.step} is empty while {live} are here"
        return plan


def most_steps(course: Course, measured: bool) -> int:
    """The bound on the steps that a closed set of requests takes.

    Every step serves at least the oldest resident, and charged to it are: for each of its
    stays, the steps that catch up with what was known when it came, and one for each of its
    outputs. With P prompt tokens, O outputs and chunks of C that is, in all,

        sum over requests of  (1 + preemptions) * ceil((P + O) / C) + O

    The preemptions in it are measured. Without measuring: blocks run out only when an
    output needs one, since admission reserved the rest. So between two outputs there are at
    most the S residents' prefills and S preemptions, and the bound is

        (sum of O) * (S * (ceil(longest / C) + 1) + 1)
    """
    chunk = min(TIGHT["max_num_batched_tokens"], TIGHT["long_prefill_token_threshold"])
    outputs = {name: one.max_tokens or 0 for name, one in course.requests.items()}
    chunks = {
        name: alone_steps(len(one.prompt), outputs[name], chunk) - outputs[name]
        for name, one in course.requests.items()
    }
    if measured:
        stays = {name: 1 + course.preemptions(name) for name in outputs}
        return sum(stays[name] * chunks[name] + outputs[name] for name in outputs)
    return sum(outputs.values()) * (SLOTS * (max(chunks.values()) + 1) + 1)


@every_variant
def test_once_arrivals_stop_all_end_within_a_bound(variant: Variant) -> None:
    course = Attentive(variant.scheduler())
    arrive(course, invent(2), seed=2)
    course.settle(most_steps(course, measured=False))
    assert course.unequal() == {}
    assert course.preempted, "memory was never short, so this shows nothing"
    assert len(course.plans) - 1 <= most_steps(course, measured=True)


@every_variant
def test_a_slot_and_memory_do_not_stay_free_while_somebody_waits(variant: Variant) -> None:
    """Unless its policy says that it can wait."""
    course = Course(variant.scheduler(num_blocks=160, max_num_batched_tokens=512))
    for request in invent(4):
        course.submit(request)
    while course.waiting:
        course.turn()
        gate = course.scheduler.gate
        if gate is not None and gate.reason == "room":
            continue
        running = len(course.scheduler.snapshot()["running"])
        ended = sum(len(ends) for ends in course.ends.values())
        assert running + ended >= min(SLOTS, len(course.requests)) or not course.waiting
        everyone = len(course.plans[-1]["tokens"]) == SLOTS
        assert everyone or not course.waiting or "discipline" in variant.settings


# -- no starvation ----------------------------------------------------------


AGEING_S = 40.0

Stream = Callable[[int], Request]


def besieged(policy: str, last: Request, stream: Stream, **settings: Any) -> Siege:
    """`last` waits behind a full house, and the stream begins."""
    variant = Variant(policy, {"ageing_s": AGEING_S, "default_deadline_s": 40.0} | settings)
    chunk = settings.get("long_prefill_token_threshold", CHUNK)
    course = Course(variant.scheduler(long_prefill_token_threshold=chunk))
    siege = Siege(course, last, stream)
    for number in range(1, 2 * SLOTS):
        course.submit(stream(1000 - number))
    course.turn()
    course.submit(siege.outcast)
    return siege


def drained_s(longest: tuple[int, int] = LONGEST_ATTACK) -> float:
    """Residents alone, nobody admitted: seconds until the last of them is gone."""
    return SLOTS * alone_steps(*longest, CHUNK) * STEP_S


def judge_first_come(policy: str, **settings: Any) -> Siege:
    """Nobody who came later is admitted earlier."""
    siege = besieged(policy, outcast(), attacker, **settings)
    siege.run(lambda siege: siege.admitted, 500)
    assert siege.admitted
    assert siege.overtakers == []
    assert siege.course.admissions == list(siege.course.requests)[: len(siege.course.admissions)]
    return siege


def judge_ageing(policy: str, **settings: Any) -> Siege:
    """After `ageing_s` it is the next to be admitted: it waits for residents to leave, and for
    nobody else.
    """
    siege = besieged(policy, outcast(), attacker, **settings)
    assert_aged_goes_first(siege, AGEING_S, LONGEST_ATTACK)
    assert len(siege.overtakers) > BACKLOG, "the stream was never preferred: this shows nothing"
    return siege


def judge_ageing_of_a_dwarf(policy: str, **settings: Any) -> Siege:
    """The same where large ones are preferred."""
    siege = besieged(policy, dwarf(), giant, **settings)
    assert_aged_goes_first(siege, AGEING_S, LONGEST_GIANT)
    assert siege.overtakers, "the stream was never preferred: this shows nothing"
    return siege


def judge_patience(policy: str, **settings: Any) -> Siege:
    """The same for a policy of which nothing else is known, so that two opposite streams try."""
    patience = patience_s(policy, ageing_s=AGEING_S)
    siege = besieged(policy, dwarf(), giant, **settings)
    assert_aged_goes_first(siege, patience, LONGEST_GIANT)
    siege = besieged(policy, outcast(), attacker, **settings)
    assert_aged_goes_first(siege, patience, LONGEST_ATTACK)
    return siege


def assert_aged_goes_first(siege: Siege, patience: float, longest: tuple[int, int]) -> None:
    submitted = siege.course.now
    siege.run(lambda siege: siege.admitted, 1_000)
    assert siege.admitted, "it was never admitted"
    aged = submitted + patience
    late = [n for n in siege.overtakers if siege.course.admitted_at[n] >= aged]
    assert late == [], "they were admitted although an older request had aged"
    waited = siege.course.admitted_at[siege.outcast.id] - submitted
    assert waited <= patience + drained_s(longest)


def judge_turns(policy: str, **settings: Any) -> Siege:
    """Once it has aged, others are admitted before it with at most `TURN` times the prompts of
    those that aged no later."""
    for last, stream in ((dwarf(), giant), (outcast(), attacker)):
        siege = besieged(policy, last, stream, **settings)
        course, aged = siege.course, siege.course.now + AGEING_S
        older = sum(len(one.prompt) for one in course.requests.values())
        siege.run(lambda siege: siege.admitted, 6_000)
        assert siege.admitted, "it was never admitted"
        late = [name for name in siege.overtakers if course.admitted_at[name] >= aged]
        assert sum(len(course.requests[name].prompt) for name in late) <= TURN * older
    return siege


def judge_deadline(policy: str, **settings: Any) -> Siege:
    """Overtaken only by requests that arrived before it was due, plus the time that the
    longest prompt takes, since slack counts work.
    """
    siege = besieged(policy, outcast(), attacker, **settings)
    course, config = siege.course, siege.course.scheduler.config.policy
    due = course.now + config.default_deadline_s
    longest_s = max(OUTCAST[0], LONGEST_ATTACK[0]) / config.prefill_tokens_per_s
    siege.run(lambda siege: siege.admitted, 500)
    assert siege.admitted, "it was never admitted"
    late = [n for n in siege.overtakers if course.submitted_at[n] >= due + longest_s]
    assert late == [], "they arrived after it was due"
    assert len(siege.overtakers) > BACKLOG, "the stream was never preferred: this shows nothing"
    # At that time BACKLOG requests may be in front of it, and SLOTS run.
    behind_s = (BACKLOG + SLOTS) * drained_s() / SLOTS
    assert course.admitted_at[siege.outcast.id] <= due + longest_s + behind_s
    return siege


def cost(account: dict[str, int]) -> float:
    """What a tenant was served, at the default charges."""
    return 1.0 * account.get("input", 0) + 2.0 * account.get("output", 0)


ONE_ATTACK = 1.0 * LONGEST_ATTACK[0] + 2.0 * LONGEST_ATTACK[1]
FULL_HOUSE = 1.0 * LONGEST_ATTACK[0] + 2.0 * SLOTS * LONGEST_ATTACK[1]


def indebted(policy: str, stream: Stream, **settings: Any) -> Siege:
    """`outcast`'s tenant was just served a large request while others were there too."""
    course = Course(Variant(policy, settings).scheduler(num_blocks=32))
    course.submit(outcast("earlier"))
    siege = Siege(course, outcast(), stream)
    siege.sent = 1000
    for _ in range(BACKLOG):
        siege.sent += 1
        course.submit(stream(siege.sent))
    while not course.ends["earlier"]:
        course.turn()
    course.submit(siege.outcast)
    return siege


def judge_fair(policy: str, **settings: Any) -> Siege:
    """Each other tenant goes first until its counter has caught up, and no further than one
    prompt and the outputs of a full house beyond.
    """
    siege = indebted(policy, attacker, **settings)
    course = siege.course
    before = {tenant: cost(account) for tenant, account in course.served.items()}
    siege.run(lambda siege: siege.admitted, 500)
    assert siege.admitted, "it was never admitted"
    assert siege.overtakers, "it was not in debt: this shows nothing"
    for tenant in "ab":
        debt = before["outcast"] - before.get(tenant, 0.0)
        assert cost(course.served[tenant]) - before.get(tenant, 0.0) <= debt + FULL_HOUSE
    return siege


def judge_fair_to_newcomers(policy: str, **settings: Any) -> Siege:
    """The same while every request comes from a tenant never seen before.

    A newcomer starts where the service that all who are here had a share in has got to. So
    with T tenants here at a time, after T times its debt was served every newcomer starts
    behind `outcast`, and before it go at most those T, with a request each.
    """
    siege = indebted(policy, lambda number: attacker(number, f"t{number}"), **settings)
    course = siege.course
    tenants = BACKLOG + SLOTS + 1
    debt = cost(course.served["outcast"])
    before = sum(map(cost, course.served.values()))
    siege.run(lambda siege: siege.admitted, 500)
    assert siege.overtakers, "it was not in debt: this shows nothing"
    served = sum(map(cost, course.served.values())) - before
    assert siege.admitted, f"never admitted, while {len(siege.overtakers)} newcomers were"
    assert served <= tenants * (debt + ONE_ATTACK)
    return siege


# How long a request may wait, by policy. One that is not listed is judged by its patience.
BOUNDS: dict[str, list[Callable[..., Siege]]] = {
    "fcfs": [judge_first_come],
    "priority": [judge_ageing],
    "shortest": [judge_ageing],
    "longest": [judge_ageing_of_a_dwarf],
    "deadline": [judge_deadline],
    "slo": [judge_turns],
    "fair": [judge_fair, judge_fair_to_newcomers],
}
SIEGES = [
    (judge, variant)
    for variant in VARIANTS
    for judge in BOUNDS.get(variant.policy, [judge_patience])
    if not variant.settings.keys() & {"ageing_s", "default_deadline_s", "tenant_weights"}
]


@pytest.mark.parametrize(
    ("judge", "variant"), SIEGES, ids=[f"{judge.__name__}-{one}" for judge, one in SIEGES]
)
def test_an_endless_stream_of_better_requests_starves_nobody(
    judge: Callable[..., Siege], variant: Variant
) -> None:
    siege = judge(variant.policy, **variant.settings)
    # It is in, and cannot be pushed out without end either: each time it is first in line
    # again, so that a full house has to leave before anybody else comes.
    alone_s = alone_steps(*OUTCAST, CHUNK) * STEP_S
    siege.run(lambda siege: siege.ended, 1_000)
    assert siege.ended, f"pushed out {siege.course.preemptions(siege.outcast.id)} times"
    took_s = siege.course.now - siege.course.admitted_at[siege.outcast.id]
    assert took_s <= (SLOTS + 1) * (drained_s() + alone_s)


@every_policy
def test_every_policy_bounds_the_wait(policy: str) -> None:
    assert policy in BOUNDS or patience_s(policy) < inf, (
        f"{policy} neither sets patience_s nor has a bound in {Path(__file__).name}"
    )


# -- determinism ------------------------------------------------------------


@pytest.fixture(scope="module")
def elsewhere() -> dict[str, str]:
    """Digests of the same runs in another process with other hashes."""
    seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    path = os.pathsep.join(entry for entry in sys.path if entry)
    done = subprocess.run(
        [sys.executable, "-m", "tests.conformance.courses"],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    return found


@every_variant
def test_the_same_inputs_give_the_same_plans(variant: Variant, elsewhere: dict[str, str]) -> None:
    assert eventful(variant).digest() == elsewhere[str(variant)]


def test_a_digest_tells_plans_apart(elsewhere: dict[str, str]) -> None:
    by_policy = {one.policy: elsewhere[str(one)] for one in VARIANTS}
    assert len(set(by_policy.values())) == len(by_policy)


# -- output -----------------------------------------------------------------


def test_unequal_output_is_noticed() -> None:
    course = Course(VARIANTS[0].scheduler())
    arrive(course, invent(6, number=4), seed=6)
    course.settle(5_000)
    course.got["r1"][-1] += 1
    course.ends["r2"].append("abort")
    assert set(course.unequal()) == {"r1", "r2"}
