"""Corners that a mistake of one line gets wrong, and that random schedules seldom visit."""

from typing import Any

from paceline import Request, Scheduler, StepResult
from paceline.core.plan import Plan
from paceline.core.request import Item
from paceline.sim.oracle import OracleRunner


def make(**settings: Any) -> Scheduler:
    sizes = {"max_num_seqs": 4, "max_num_batched_tokens": 64, "max_model_len": 64}
    return Scheduler.create(**{**sizes, "num_blocks": 32, "block_size": 4, **settings})


def request(name: str, prompt: list[int], **fields: Any) -> Request:
    return Request(id=name, prompt=prompt, **fields)  # pyright: ignore[reportArgumentType]


def sampling(plan: Plan) -> list[str]:
    rows = zip(plan.rows.labels, plan.rows.samples.tolist(), strict=True)
    return [label for label, samples in rows if samples]


def step(scheduler: Scheduler) -> Plan:
    plan = scheduler.plan(0.0)
    commit(scheduler, plan)
    return plan


def commit(scheduler: Scheduler, plan: Plan) -> None:
    result = StepResult.of(plan, {label: [5] for label in sampling(plan)})
    scheduler.commit(plan, result, 0.0)


def test_the_last_child_of_a_resident_family_runs_past_the_fork() -> None:
    scheduler = make(max_num_batched_tokens=4)
    scheduler.submit(request("f", list(range(10)), max_tokens=3, n=2), 0.0)
    step(scheduler)  # four of nine shared positions: resident, and not forked
    assert scheduler.abort("f", 0.0, child=1)
    for _ in range(20):
        step(scheduler)
    assert scheduler.idle


def test_a_steady_decode_takes_the_very_last_block() -> None:
    scheduler = make(num_blocks=3, max_model_len=12)
    scheduler.submit(request("a", [1, 2, 3], max_tokens=9), 0.0)
    first, *plans = [step(scheduler) for _ in range(8)]
    assert first.rows is not plans[0].rows
    assert all(plan.rows is plans[0].rows for plan in plans)


def test_one_whose_copy_is_lost_waits_in_front() -> None:
    swapping = {"preemption_mode": "swap", "swap_space": 16, "policy": "priority"}
    scheduler = make(num_blocks=6, max_model_len=24, max_num_seqs=2, **swapping)
    scheduler.submit(request("a", [1] * 10, max_tokens=10, arrival=4.0), 0.0)
    scheduler.submit(request("b", [2] * 10, max_tokens=10, arrival=5.0), 0.0)
    step(scheduler)
    scheduler.submit(request("c", [3] * 4, max_tokens=2, arrival=1.0), 0.0)
    while not (plan := scheduler.plan(0.0)).swap_out:
        commit(scheduler, plan)
    assert scheduler.snapshot()["swapped"] == ["b"]
    scheduler.retry(plan, 0.0)
    assert scheduler.snapshot()["waiting"] == ["b", "c"]


def test_tenants_pay_only_for_what_is_told() -> None:
    scheduler = make(policy="fair", num_speculative_tokens=3, speculation="fixed")
    stops = {"max_tokens": 20, "stop_token_ids": (9,), "tenant": "t"}
    scheduler.submit(request("a", [1, 2, 3], **stops), 0.0)
    step(scheduler)
    plan, policy = scheduler.plan(0.0), scheduler.state.policy
    served: dict[str, float] = policy.served  # pyright: ignore[reportAttributeAccessIssue]
    before = served["t"]
    assert plan.rows.drafts.tolist() == [3]
    scheduler.commit(plan, StepResult.of(plan, {"a": [7, 9, 7, 7]}), 0.0)
    assert served["t"] - before == 2 * scheduler.config.policy.output_token_weight


def test_a_beam_that_was_preempted_forgets_what_it_reported() -> None:
    scheduler = make(max_num_batched_tokens=4)
    scheduler.submit(request("b", [1, 2, 3], max_tokens=4, beam_width=2), 0.0)
    family = scheduler.state.families["b"]
    while not scheduler.stats.sampled:
        plan = scheduler.plan(0.0)
        told = {label: [(5, -1.0), (6, -2.0), (7, -3.0), (8, -4.0)] for label in sampling(plan)}
        ids, scores = dict.fromkeys(told, (5,)), dict.fromkeys(told, (-1.0,))
        scheduler.commit(plan, StepResult.of(plan, ids, scores, told), 0.0)
    family.reports[0] = []  # one of the two has told its candidates
    scheduler.reset_prefix_cache(reset_running_requests=True)
    assert family.reports == {}


def test_admission_is_asked_again_when_fences_fall() -> None:
    scheduler = make(num_blocks=5, max_model_len=20)
    scheduler.submit(request("a", [1], max_tokens=16), 0.0)
    scheduler.submit(request("f", [2] * 6, max_tokens=4, n=2), 0.0)
    step(scheduler)
    copying = scheduler.plan(0.0)
    assert copying.copies  # blocks of the fork are fenced until it has run
    scheduler.submit(request("c", [3] * 16, max_tokens=1), 0.0)
    assert scheduler.abort("f", 0.0)
    alone = scheduler.plan(0.0)
    assert alone.to_dict()["tokens"] == {"a": 1}
    assert scheduler.gate is not None
    assert scheduler.gate.reason == "blocks"
    commit(scheduler, copying)
    commit(scheduler, alone)
    assert "c" in scheduler.plan(0.0).to_dict()["new"]


def test_nobody_is_displaced_in_vain_for_what_is_shared_with_it() -> None:
    scheduler = make(num_blocks=8, max_model_len=32, policy="priority", preempt_on_arrival=True)
    prefix = list(range(12))
    scheduler.submit(request("m", [50] * 6, max_tokens=3), 0.0)
    scheduler.submit(request("l", [*prefix, 40], max_tokens=4, priority=5), 0.0)
    step(scheduler)
    scheduler.submit(request("h", prefix + [41] * 16, max_tokens=2), 0.0)
    assert scheduler.plan(0.0).preempted == ()
    assert scheduler.snapshot()["running"] == ["m", "l"]


def test_what_comes_back_without_a_row_is_in_flight() -> None:
    swapping = {"preemption_mode": "swap", "swap_space": 32, "reserve_full_prompt": False}
    sizes = {"num_blocks": 8, "max_model_len": 24, "max_num_batched_tokens": 8, "max_num_seqs": 3}
    scheduler = make(discipline="prefill_first", max_wait=0.0, **sizes, **swapping)
    for name, (prompt, most) in enumerate([(16, 5), (3, 5), (11, 1)]):
        scheduler.submit(request(str(name), [name] * prompt, max_tokens=most), 0.0)
    for now in range(200):
        plan = scheduler.plan(float(now))
        rows = plan.rows.slot.tolist()
        if plan.swap_in and (back := [new for new in plan.admitted if new.slot not in rows]):
            assert back[0].slot in scheduler.state.in_flight()
            return
        result = StepResult.of(plan, {label: [5] for label in sampling(plan)})
        scheduler.commit(plan, result, float(now))
    raise AssertionError("it never came back without a row")


def test_ranks_of_the_swapped_are_asked_for_again_in_every_step() -> None:
    scheduler = make(policy="shortest")
    swapped = scheduler.state.swapped
    swapped._asks_left = 0
    scheduler.plan(0.0)
    assert swapped._asks_left > 0


def test_equal_tokens_with_and_without_an_image_share_nothing_behind_it() -> None:
    items = {"text": (), "cat": (Item("cat", 4, 8),), "dog": (Item("dog", 4, 8),)}
    for order in (("text", "cat"), ("cat", "text"), ("cat", "dog"), ("cat", "text", "dog")):
        scheduler, runner = make(), OracleRunner(32, 4, 50)
        for name in order:
            prompt = [9] * 4 + [7] * 8 + [1]
            scheduler.submit(request(name, prompt, max_tokens=2, items=items[name]), 0.0)
            while not scheduler.idle:
                plan = scheduler.plan(0.0)
                scheduler.commit(plan, runner.run(plan), 0.0)
        assert scheduler.stats.prefix_hits == 4 * (len(order) - 1)


def test_weights_of_tenants_may_be_as_different_as_numbers_are() -> None:
    scheduler = make(policy="fair", tenant_weights={"big": 1e17, "small": 1e-17})
    for name, outputs in (("big", 2), ("small", 9), ("plain", 4)):
        scheduler.submit(request(name, [1, 2], max_tokens=outputs, tenant=name), 0.0)
    for _ in range(20):
        step(scheduler)
    assert scheduler.idle
