"""Virtual token counters: who goes first, what idling earns, and how far tenants drift apart."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import permutations
from random import Random
from typing import Any

import numpy as np
import pytest

from paceline import Request, Scheduler, StepResult
from paceline.sched.policies.fair import FORGOTTEN_FROM, Fair
from tests.conformance.courses import VOCAB, Course
from tests.sched import constant_steps as steps
from tests.sched.support import Pipeline, answer, ask, finish_all, small, step
from tests.seeds import seeds

INPUT, OUTPUT = 1.0, 2.0  # the default charges


def fair(**settings: Any) -> Scheduler:
    return small(**{"policy": "fair"} | settings)


def counters(scheduler: Scheduler) -> dict[str, float]:
    policy = scheduler.state.policy
    assert isinstance(policy, Fair)
    return policy.served


def admissions(scheduler: Scheduler, most: int) -> list[str]:
    """The next ones to be admitted."""
    came: list[str] = []
    while len(came) < most and not scheduler.idle:
        came += step(scheduler)["new"]
    return came


def tenants(names: list[str]) -> str:
    return "".join(name[0] for name in names)


# -- counters ---------------------------------------------------------------


def test_prompt_tokens_and_generated_tokens_are_charged_at_their_weight() -> None:
    scheduler = fair(input_token_weight=0.5, output_token_weight=3.0, tenant_weights={"b": 2.0})
    scheduler.submit(ask("a1", 8, 4, tenant="a"), now=0.0)
    scheduler.submit(ask("b1", 8, 4, tenant="b"), now=0.0)
    step(scheduler)
    assert counters(scheduler) == {"a": 8 * 0.5 + 3.0, "b": (8 * 0.5 + 3.0) / 2}
    step(scheduler)
    assert counters(scheduler) == {"a": 8 * 0.5 + 2 * 3.0, "b": (8 * 0.5 + 2 * 3.0) / 2}


def test_cached_tokens_are_free() -> None:
    scheduler = fair()
    scheduler.submit(ask("a1", range(17), 1, tenant="a"), now=0.0)
    finish_all(scheduler)
    scheduler.submit(ask("b1", range(17), 2, tenant="b"), now=0.0)
    before = counters(scheduler)["b"]
    step(scheduler)
    assert counters(scheduler)["b"] - before == 1 * INPUT + 1 * OUTPUT


def test_work_done_again_after_a_preemption_is_not_charged_again() -> None:
    scheduler = fair(enable_prefix_caching=False)
    scheduler.submit(ask("a1", 12, 6, tenant="a"), now=0.0)
    step(scheduler)
    step(scheduler)
    scheduler.retry(scheduler.plan(now=0.0), now=0.0)
    step(scheduler)
    assert scheduler.stats.resumed_queries == scheduler.stats.resumed_hits == 0  # all of it again
    assert scheduler.stats.preemptions == 1
    assert counters(scheduler)["a"] == 12 * INPUT + 3 * OUTPUT


def test_the_tenant_that_was_served_least_goes_first() -> None:
    scheduler = fair(max_num_seqs=1)
    for number in range(4):
        scheduler.submit(ask(f"a{number}", 10, 1, tenant="a"), now=0.0)
    for number in range(4):
        scheduler.submit(ask(f"b{number}", 4, 1, tenant="b"), now=0.0)
    # 12 for each of a's, 6 for each of b's; where they stand equal, the earlier.
    assert tenants(admissions(scheduler, 8)) == "abbabbaa"


def test_a_tenant_of_twice_the_weight_gets_twice_as_much() -> None:
    scheduler = fair(max_num_seqs=1, tenant_weights={"b": 2.0})
    for number in range(30):
        scheduler.submit(ask(f"a{number}", 4, 1, tenant="a"), now=0.0)
        scheduler.submit(ask(f"b{number}", 4, 1, tenant="b"), now=0.0)
    came = Counter(tenants(admissions(scheduler, 30)))
    assert came == {"a": 10, "b": 20}


def test_within_a_tenant_the_order_is_that_of_submission() -> None:
    scheduler = fair(max_num_seqs=1)
    for name in ("a1", "b1", "a2", "b2", "a3", "b3"):
        scheduler.submit(ask(name, 4, 1, tenant=name[0]), now=0.0)
    came = admissions(scheduler, 6)
    assert [name for name in came if name[0] == "a"] == ["a1", "a2", "a3"]
    assert [name for name in came if name[0] == "b"] == ["b1", "b2", "b3"]


def test_a_tenant_alone_has_everything() -> None:
    scheduler = fair(max_num_seqs=3)
    for number in range(9):
        scheduler.submit(ask(f"a{number}", 2, 4, tenant="a"), now=0.0)
    while len(scheduler.snapshot()["waiting"]) > 3:
        assert len(step(scheduler)["tokens"]) == 3


def test_a_parked_tenant_holds_up_nobody() -> None:
    scheduler = fair(max_num_seqs=1)
    scheduler.submit(ask("a1", 2, 1, tenant="a"), now=0.0, parked="grammar")
    scheduler.submit(ask("b1", 2, 1, tenant="b"), now=0.0)
    assert admissions(scheduler, 1) == ["b1"]


def test_a_resident_of_the_tenant_that_was_served_most_gives_way() -> None:
    scheduler = fair(max_num_batched_tokens=64, num_blocks=14)
    scheduler.submit(ask("a1", 20, 20, tenant="a"), now=0.0)
    scheduler.submit(ask("b1", 12, 20, tenant="b"), now=0.0)
    scheduler.submit(ask("c1", 12, 20, tenant="c"), now=0.0)
    gone: list[str] = []
    while not gone:
        gone = step(scheduler)["preempted"]
    assert gone == ["a1"]


# -- coming back ------------------------------------------------------------


def test_a_tenant_that_idled_cannot_monopolise() -> None:
    """It is lifted to where the others are, so at once they take turns again."""
    scheduler = fair(max_num_seqs=1, num_blocks=64)
    scheduler.submit(ask("b0", 4, 1, tenant="b"), now=0.0)
    finish_all(scheduler)
    for number in range(60):
        scheduler.submit(ask(f"a{number}", 4, 1, tenant="a"), now=0.0)
    admissions(scheduler, 30)  # meanwhile b is away
    for number in range(1, 30):
        scheduler.submit(ask(f"b{number}", 4, 1, tenant="b"), now=0.0)
    came = tenants(admissions(scheduler, 20))
    assert abs(came.count("a") - came.count("b")) <= 2
    assert "bbb" not in came


def test_a_tenant_never_seen_before_cannot_monopolise_either() -> None:
    scheduler = fair(max_num_seqs=1, num_blocks=64)
    for number in range(60):
        scheduler.submit(ask(f"a{number}", 4, 1, tenant="a"), now=0.0)
    admissions(scheduler, 30)
    for number in range(30):
        scheduler.submit(ask(f"n{number}", 4, 1, tenant="n"), now=0.0)
    assert "nnn" not in tenants(admissions(scheduler, 20))


def test_nor_where_a_third_one_takes_less_than_its_share() -> None:
    """A newcomer starts beside those who wait, not beside the average of all who are here."""
    scheduler = fair(max_num_seqs=2, num_blocks=64, enable_prefix_caching=False)
    scheduler.submit(ask("modest", 2, 60, tenant="modest"), now=0.0)
    for number in range(60):
        scheduler.submit(ask(f"a{number}", 10, 1, tenant="a"), now=0.0)
    assert tenants(admissions(scheduler, 31)) == "m" + 30 * "a"
    for number in range(30):
        scheduler.submit(ask(f"n{number}", 10, 1, tenant="n"), now=0.0)
    assert "modest" in scheduler.snapshot()["running"]
    came = tenants(admissions(scheduler, 10))
    assert abs(came.count("a") - came.count("n")) <= 2


def test_going_away_does_not_pay_a_debt() -> None:
    """Who leaves with more than its share finds itself there again on coming back."""
    scheduler = fair(max_num_seqs=2, num_blocks=64)
    scheduler.submit(ask("a0", 40, 1, tenant="a"), now=0.0)
    for number in range(20):
        scheduler.submit(ask(f"b{number}", 4, 1, tenant="b"), now=0.0)
    admissions(scheduler, 2)
    step(scheduler)
    scheduler.submit(ask("a1", 4, 1, tenant="a"), now=0.0)
    assert counters(scheduler)["a"] == 40 * INPUT + 1 * OUTPUT
    assert tenants(admissions(scheduler, 4)) == "bbbb"


# -- the service gap --------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sizes:
    """What the requests of a tenant are like, in tokens."""

    prompts: tuple[int, int]
    outputs: tuple[int, int]
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Contest:
    tenants: Mapping[str, Sizes]
    settings: Mapping[str, Any]


CONTESTS = {
    "two, prompts against outputs": Contest(
        {"read": Sizes((40, 50), (1, 3)), "write": Sizes((1, 4), (20, 30))}, {}
    ),
    "two, large against small, weighted": Contest(
        {"large": Sizes((30, 50), (5, 12), 1.0), "small": Sizes((1, 3), (1, 3), 3.0)}, {}
    ),
    "two, on a pool that is always full": Contest(
        {"read": Sizes((30, 40), (2, 10)), "write": Sizes((1, 4), (20, 40))}, {"num_blocks": 24}
    ),
    "three, all different": Contest(
        {
            "read": Sizes((40, 50), (1, 3), 0.5),
            "write": Sizes((1, 4), (20, 30), 2.0),
            "chat": Sizes((5, 15), (5, 15), 1.0),
        },
        {},
    ),
    "three, on a pool that is always full, other charges": Contest(
        {
            "read": Sizes((30, 40), (2, 10), 0.5),
            "write": Sizes((1, 4), (20, 40), 0.25),
            "chat": Sizes((5, 15), (5, 15), 1.0),
        },
        {
            "num_blocks": 20,
            "max_num_seqs": 4,
            "input_token_weight": 0.25,
            "output_token_weight": 1.0,
        },
    ),
    "three, victims chosen by cost, small budget": Contest(
        {
            "read": Sizes((40, 50), (1, 3), 0.5),
            "write": Sizes((1, 4), (20, 30), 2.0),
            "chat": Sizes((5, 15), (5, 15), 1.0),
        },
        {"num_blocks": 24, "victim": "cheapest", "max_num_batched_tokens": 8},
    ),
}

STEPS = 500


class Arena:
    """Tenants that always have requests waiting, and what each of them was served."""

    def __init__(self, contest: Contest, policy: str = "fair", seed: int = 0) -> None:
        self.contest = contest
        weights = {name: sizes.weight for name, sizes in contest.tenants.items()}
        self.settings: dict[str, Any] = {
            "policy": policy,
            "max_num_seqs": 8,
            "max_num_batched_tokens": 64,
            "max_model_len": 64,
            "num_blocks": 96,
            "block_size": 4,
            "tenant_weights": weights,
        } | dict(contest.settings)
        self.course = Course(Scheduler.create(**self.settings))
        self.random = Random(seed)

    def step(self, present: Mapping[str, Sizes]) -> None:
        waiting = Counter(s.request.tenant for s in self.course.scheduler.state.queue)
        for tenant, sizes in present.items():
            for _ in range(10 - waiting[tenant]):
                self.course.submit(self.invent(tenant, sizes))
        self.course.turn()

    def invent(self, tenant: str, sizes: Sizes) -> Request:
        r = self.random
        return Request(
            id=f"{tenant}{len(self.course.requests)}",
            prompt=np.array([r.randrange(VOCAB) for _ in range(r.randint(*sizes.prompts))]),
            max_tokens=r.randint(*sizes.outputs),
            tenant=tenant,
            cache_salt=str(len(self.course.requests)),
        )

    def served(self, tenant: str) -> float:
        """What the tenant got, over its weight: counted from plans and outputs alone."""
        config = self.course.scheduler.config.policy
        account = self.course.served[tenant]
        cost = config.input_token_weight * account.get("input", 0)
        cost += config.output_token_weight * account.get("output", 0)
        return cost / self.contest.tenants[tenant].weight

    def bound(self, tenant: str) -> float:
        """How far a tenant can be ahead of another while both wait.

        When one of its requests is admitted, it is not ahead. From then on, until the next
        one is, it is charged at most that prompt and the outputs of all its residents:

            (input_token_weight * P + output_token_weight * S * O) / weight

        with P its longest prompt, O its most outputs, and S = max_num_seqs.
        """
        config, sizes = self.course.scheduler.config, self.contest.tenants[tenant]
        slots = config.step.max_num_seqs
        cost = config.policy.input_token_weight * sizes.prompts[1]
        cost += config.policy.output_token_weight * slots * sizes.outputs[1]
        return cost / sizes.weight

    def gaps(self) -> Iterator[tuple[str, float]]:
        """For each ordered pair, how much the first is ahead of the second."""
        for one, other in permutations(self.contest.tenants, 2):
            yield one, self.served(one) - self.served(other)


@pytest.mark.no_cover
@pytest.mark.parametrize("contest", CONTESTS.values(), ids=CONTESTS.keys())
def test_the_service_gap_between_backlogged_tenants_stays_under_its_bound(contest: Contest) -> None:
    arena = Arena(contest)
    widest: Counter[str] = Counter()
    for number in range(STEPS):
        arena.step(contest.tenants)
        for tenant, gap in arena.gaps():
            assert gap <= arena.bound(tenant), f"{tenant} is {gap} ahead in step {number}"
            widest[tenant] = max(widest[tenant], gap)
    assert any(widest[tenant] > arena.bound(tenant) / 20 for tenant in widest)
    for tenant in contest.tenants:
        assert arena.served(tenant) > 2 * arena.bound(tenant), "too short to show anything"
    counted = counters(arena.course.scheduler)
    assert {t: pytest.approx(arena.served(t)) for t in contest.tenants} == counted
    if "num_blocks" in contest.settings:
        assert arena.course.preempted


def test_the_bound_tells_fair_from_unfair() -> None:
    contest = CONTESTS["two, large against small, weighted"]
    arena = Arena(contest, policy="fcfs")
    for _ in range(STEPS):
        arena.step(contest.tenants)
    assert any(gap > arena.bound(tenant) for tenant, gap in arena.gaps())


@pytest.mark.no_cover
@pytest.mark.parametrize("seed", seeds(2))
def test_tenants_that_come_and_go_are_not_further_apart(seed: int) -> None:
    """When the later of two comes, either is ahead by its bound at most. From then on, while
    both wait, the other can catch up and get ahead by its own, and that is all.
    """
    contest = CONTESTS["three, all different"]
    arena, r = Arena(contest, seed=seed), Random(seed)
    stay = contest.tenants["chat"]
    present = dict(contest.tenants)
    since: dict[str, dict[str, float]] = {}
    for number in range(STEPS):
        if number % 40 == 0:
            before = set(present)
            present = {t: s for t, s in contest.tenants.items() if r.random() < 0.5}
            present["chat"] = stay
            now = {tenant: arena.served(tenant) for tenant in contest.tenants}
            since = {t: since[t] if t in before and t in since else now for t in present}
        arena.step(present)
        for one, other in permutations(present, 2):
            start = max(since[one], since[other], key=lambda served: sum(served.values()))
            grown = arena.served(one) - start[one] - (arena.served(other) - start[other])
            assert grown <= arena.bound(one) + arena.bound(other), f"{one} in step {number}"


# -- many tenants -----------------------------------------------------------

MOST_KEPT = 400  # entries of any one container, where a handful of tenants is here


def kept(scheduler: Scheduler) -> int:
    """The size of the largest thing that the policy keeps."""
    held = vars(scheduler.state.policy).values()
    return max(len(one) for one in held if isinstance(one, (dict, list)))


def pass_through(scheduler: Scheduler, number: int, tenant: str) -> None:
    scheduler.submit(ask(f"r{number}", 3, 2, tenant=tenant), now=0.0)
    plan = scheduler.plan(now=0.0)
    scheduler.commit(plan, answer(plan), now=0.0)


@pytest.mark.no_cover
def test_tenants_that_went_away_are_forgotten() -> None:
    """So nothing that goes over all that is kept can take long, either."""
    scheduler = fair(max_num_seqs=2, num_blocks=64)
    scheduler.submit(ask("long", 3, 60, tenant="resident"), now=0.0)
    most = 0
    for number in range(2 * MOST_KEPT):
        pass_through(scheduler, number, f"t{number}")
        most = max(most, kept(scheduler))
    assert most <= MOST_KEPT


def test_tenants_that_never_got_in_are_forgotten_too() -> None:
    scheduler = fair()
    for number in range(2 * MOST_KEPT):
        scheduler.submit(ask(f"r{number}", 3, 1, tenant=f"t{number}"), now=0.0)
        scheduler.abort(f"r{number}", now=0.0)
    assert kept(scheduler) <= MOST_KEPT
    pass_through(scheduler, 99_999, "somebody")
    finish_all(scheduler)


def test_a_tenant_that_keeps_coming_and_going_is_kept_once() -> None:
    """Also while it has had more than its share, so that it cannot be forgotten yet."""
    scheduler = fair(max_num_seqs=1, num_blocks=64)
    scheduler.submit(ask("rich", 40, 1, tenant="rich"), now=0.0)
    scheduler.submit(ask("poor", 4, 50, tenant="poor"), now=0.0)
    while scheduler.snapshot()["running"] != ["poor"]:
        step(scheduler)
    debt = counters(scheduler)["rich"]
    for number in range(2 * MOST_KEPT):
        scheduler.submit(ask(f"r{number}", 3, 1, tenant="rich"), now=0.0)
        scheduler.abort(f"r{number}", now=0.0)
    assert counters(scheduler)["rich"] == debt
    assert kept(scheduler) <= MOST_KEPT


def test_who_is_here_is_remembered_while_others_are_forgotten() -> None:
    scheduler = fair(max_num_seqs=2, num_blocks=64)
    scheduler.submit(ask("long", 3, 60, tenant="resident"), now=0.0)
    step(scheduler)
    for number in range(2 * MOST_KEPT):
        scheduler.submit(ask(f"r{number}", 3, 1, tenant=f"t{number}"), now=0.0)
        scheduler.abort(f"r{number}", now=0.0)
    before = counters(scheduler)["resident"]
    step(scheduler)
    assert counters(scheduler)["resident"] - before == OUTPUT
    assert scheduler.state.policy.victim() == 0


def test_a_slot_that_changes_hands_is_charged_to_its_new_tenant() -> None:
    scheduler = fair(max_num_seqs=1, num_blocks=64)
    for number in range(3):
        scheduler.submit(ask(f"r{number}", 3, 4, tenant=f"t{number}"), now=0.0)
    for number in range(3):
        before = counters(scheduler)[f"t{number}"]
        for _ in range(3):
            step(scheduler)
        assert counters(scheduler)[f"t{number}"] - before == 3 * INPUT + 3 * OUTPUT
        step(scheduler)


@pytest.mark.parametrize("parked", [True, False])
def test_a_tenant_saves_up_nothing_while_all_it_has_is_parked(parked: bool) -> None:
    scheduler = fair(max_num_seqs=1, num_blocks=64)
    scheduler.submit(ask("b0", 4, 1, tenant="b"), now=0.0, parked="grammar" if parked else "")
    if not parked:
        scheduler.park("b0", "grammar", now=0.0)
    for number in range(60):
        scheduler.submit(ask(f"a{number}", 4, 1, tenant="a"), now=0.0)
    admissions(scheduler, 30)
    scheduler.wake("b0", now=0.0)
    for number in range(1, 30):
        scheduler.submit(ask(f"b{number}", 4, 1, tenant="b"), now=0.0)
    assert "bbb" not in tenants(admissions(scheduler, 20))


def test_a_parked_family_is_not_here_whoever_leads_it() -> None:
    scheduler = fair()
    scheduler.submit(ask("a", 3, 2, tenant="t", n=2), 0.0, parked="grammar")
    scheduler.abort("a", 0.0, child=0)
    scheduler.submit(ask("b", 3, 2, tenant="u"), 0.0)
    while scheduler.unfinished > 1:
        step(scheduler)
    scheduler.submit(ask("c", 3, 2, tenant="v"), 0.0)
    assert counters(scheduler)["v"] == counters(scheduler)["u"]  # nobody shared with it


def test_who_is_ahead_of_its_share_is_remembered() -> None:
    """It was served alone while another waited, and many come and go before it returns."""
    scheduler = fair(max_num_seqs=1)
    scheduler.submit(ask("a", 20, 9, tenant="ahead"), 0.0)
    step(scheduler)
    scheduler.submit(ask("b", 3, 9, tenant="behind"), 0.0)
    while "a" in scheduler.snapshot()["running"]:
        step(scheduler)
    before = counters(scheduler)["ahead"]
    for number in range(2 * FORGOTTEN_FROM):
        scheduler.submit(ask(f"r{number}", 3, tenant=f"t{number}"), 0.0)
        scheduler.abort(f"r{number}", 0.0)
    assert len(counters(scheduler)) < 2 * FORGOTTEN_FROM
    assert counters(scheduler)["ahead"] == before


def test_tokens_of_beams_are_counted_and_charged() -> None:
    """Three tokens of each beam are chosen; with the fourth the search is over."""
    scheduler = fair()
    scheduler.submit(ask("a", 5, max_tokens=4, beam_width=2, tenant="t"), 0.0)
    Pipeline(scheduler, depth=1).run()
    assert scheduler.stats.sampled == 3 * 2
    assert counters(scheduler)["t"] == 6 * INPUT + 3 * 2 * OUTPUT


def test_tenants_pay_only_for_what_is_told() -> None:
    scheduler = steps.make(policy="fair", num_speculative_tokens=3, speculation="fixed")
    stops = {"max_tokens": 20, "stop_token_ids": (9,), "tenant": "t"}
    scheduler.submit(steps.request("a", [1, 2, 3], **stops), 0.0)
    steps.step(scheduler)
    plan, policy = scheduler.plan(0.0), scheduler.state.policy
    served: dict[str, float] = policy.served  # pyright: ignore[reportAttributeAccessIssue]
    before = served["t"]
    assert plan.rows.drafts.tolist() == [3]
    scheduler.commit(plan, StepResult.of(plan, {"a": [7, 9, 7, 7]}), 0.0)
    assert served["t"] - before == 2 * scheduler.config.policy.output_token_weight


def test_weights_of_tenants_may_be_as_different_as_numbers_are() -> None:
    scheduler = steps.make(policy="fair", tenant_weights={"big": 1e17, "small": 1e-17})
    for name, outputs in (("big", 2), ("small", 9), ("plain", 4)):
        scheduler.submit(steps.request(name, [1, 2], max_tokens=outputs, tenant=name), 0.0)
    for _ in range(20):
        steps.step(scheduler)
    assert scheduler.idle
