"""The simulated server."""

from dataclasses import replace
from math import inf
from random import Random
from typing import Any

import numpy as np
import pytest

from paceline.simulator.device.profile import Profile
from paceline.simulator.device.time_curve import RowRates, TimeCurve
from paceline.simulator.device.timed_runner import Drafting
from paceline.simulator.requests import OUTPUT, SimulatedRequest
from paceline.simulator.server import ServerModel, SimulatedRun, SimulatedServer
from paceline.workloads.call import Segment

POLICIES = ("fcfs", "fair", "shortest", "deadline", "priority", "longest")
TINY = {"block_size": 4, "max_num_seqs": 6, "max_num_batched_tokens": 24, "max_model_len": 256}
PROFILE = Profile.of(
    {
        "format": 1,
        "decode": {"fixed_s": 0.01, "positions": [[1, 0], [4, 0.001], [8, 0.007]]}
        | {"contexts": [[0, 0], [100, 0.0031], [300, 0.011]]},
        "mixed": {"fixed_s": 0.012, "positions": [[0, 0], [1, 0.0013]], "pairs": [[1, 1e-4]]},
        "moves": {"swap_out": [[0, 0], [1, 0.002]], "swap_in": [[1, 0.003]]},
        "host": {
            "plan_s": 0.001,
            "plan_row_s": 0.0003,
            "change_s": 0.0002,
            "admit_s": 0.002,
            "commit_s": 0.0007,
        },
        "frontend": {"request_s": 0.002, "prompt_token_s": 1e-5, "delivery_row_s": 0.0001},
        "http": {"delivery_s": 0.0011},
    }
)


# Steps are filled up to sizes, and wait for long contexts and deep prompts.
UNEVEN = replace(
    PROFILE,
    decode=replace(
        PROFILE.decode, sizes=(1, 2, 4, 6), reading=RowRates([[2, 1e-5, 1e-5], [6, 1e-5, 7e-5]])
    ),
    mixed=replace(
        PROFILE.mixed,
        sizes=(8, 16, 24),
        reading=RowRates([[1, 1e-5, 3e-5]]),
        deepest=TimeCurve([[0, 0], [50, 0.003]]),
    ),
)


def drawn_settings(random: Random) -> dict[str, Any]:
    swap = {"preemption_mode": "swap", "swap_space": 12} if random.random() < 0.3 else {}
    return (
        TINY
        | swap
        | {
            "policy": random.choice(POLICIES),
            "num_blocks": random.choice((24, 40, 200)),
            "enable_prefix_caching": random.random() < 0.7,
            "queue_timeout_s": random.choice((0.0, 0.0, 2.0)),
            "max_num_queued_reqs": random.choice((5, 65536)),
            "refuse_late": random.random() < 0.3,
            "ageing_s": 3.0,
            "watermark": random.choice((0.0, 0.1)),
        }
    )


def drawn_load(random: Random, count: int) -> list[SimulatedRequest]:
    requests: list[SimulatedRequest] = []
    at = 0.0
    for number in range(count):
        at += random.expovariate(random.choice((0.5, 3.0, 20.0)))
        content = (Segment(f"shared {random.randrange(3)}", random.choice((8, 13))),)
        content += (Segment(f"own {number}", random.randint(1, 30)),)
        one = SimulatedRequest(
            f"r{number}",
            at,
            content,
            random.choice((1, 2, 7, 30, 90)),
            tenant=random.choice("ab"),
            priority=random.randrange(3),
            deadline_s=random.choice((None, 0.5)),
            leaves_after_s=random.choice((inf, inf, 1.5)),
        )
        if number and random.random() < 0.3:  # the next turn of a conversation
            follows = random.randrange(number)
            before = requests[follows]
            assert isinstance(before.content, tuple)
            said = (*before.content, Segment(OUTPUT, before.output_len), Segment(f"{number}", 5))
            one = replace(one, at_s=random.random(), follows=follows, content=said)
        requests.append(one)
    return requests


def columns(run: SimulatedRun) -> dict[str, Any]:
    log = run.log
    times = {name: getattr(log, name) for name in ("arrival", "first", "last", "ended", "longest")}
    named = ("tokens", "pieces", "cached", "preemptions", "queued")
    counts = {name: getattr(log, name) for name in named}
    rest = {"timeline": list(run.timeline.to_dict().values()), "gaps": log.gaps.counts}
    stats = {"stats": list(run.stats.to_dict().values())}
    return times | counts | rest | stats


@pytest.mark.parametrize(
    ("seed", "drafts"), [*((seed, 0) for seed in range(8)), (1, 2), (7, 4), (15, 4), (26, 3)]
)
def test_random_loads_end_and_repeat(seed: int, drafts: int) -> None:
    random = Random(seed)
    settings, load = drawn_settings(random), drawn_load(random, 25)
    settings |= {"num_speculative_tokens": drafts}
    drafting = Drafting(random.choice((0.0, 0.3, 0.9)), 0.0004) if drafts else None
    settings["discipline"] = random.choice(("unified", "unified", "prefill_first"))
    depth = random.choice((1, 2, 2, 3))
    profile = UNEVEN if seed % 2 else replace(PROFILE, host=Profile().host)
    told = {one.id: np.arange(one.output_len, dtype=np.int32) for one in load[: seed % 4]}
    runs: list[SimulatedRun] = []
    reused: list[list[int]] = []
    for _ in range(2):
        model = ServerModel(profile, settings, depth, drafting=drafting)
        server = SimulatedServer(model, load, told, ["r3", "r7"])
        runs.append(server.run())
        server.scheduler.check()
        pool = server.scheduler.state.cache.pool
        reused.append(pool.take(pool.free))
    first, again = runs
    assert reused[0] == reused[1], "blocks are reused in the same order"
    assert first.log.outcome == again.log.outcome
    assert all(first.log.outcome), "each request ends"
    assert first.log.message == again.log.message
    assert first.explained == again.explained
    for (name, one), other in zip(columns(first).items(), columns(again).values(), strict=True):
        np.testing.assert_array_equal(one, other, name)
    log = first.log
    done = np.array(log.outcome) == "length"
    wanted = np.array([one.output_len for one in load])
    np.testing.assert_array_equal(log.tokens[done], wanted[done])
    began = ~np.isnan(log.first)
    assert (log.arrival[began] <= log.first[began]).all()


def test_a_request_alone() -> None:
    """Each time of a request adds up."""
    load = [SimulatedRequest("a", 1.0, (Segment("a", 10),), 5)]
    run = SimulatedServer(ServerModel(PROFILE, TINY | {"num_blocks": 40}), load).run()
    read = 0.002 + 10 * 1e-5
    prompt = 0.012 + 10 * 0.0013 + 1e-4
    delivery = 0.0011 + 0.0001
    first = 1.0 + read + (0.001 + 0.0003 + 0.0002 + 0.002) + prompt + 0.0007 + delivery
    assert run.log.first[0] == pytest.approx(first)
    steps = [0.001 + 0.0003 + 0.01 + 0.0031 * (10 + n) / 100 + 0.0007 for n in range(1, 5)]
    steps[0] += 0.0002  # its rows are new ones
    assert run.log.ended[0] == run.log.last[0] == pytest.approx(first + sum(steps))
    assert run.log.longest[0] == pytest.approx(max(steps))
    assert (run.log.tokens[0], run.log.outcome) == (5, ["length"])


def test_two_steps_in_flight_hide_the_host() -> None:
    load = [SimulatedRequest("a", 0.0, (Segment("a", 4),), 50)]
    took = [
        float(SimulatedServer(ServerModel(PROFILE, TINY, depth), load).run().log.ended[0])
        for depth in (1, 2)
    ]
    assert took[0] - took[1] == pytest.approx(49 * (0.001 + 0.0003 + 0.0007), rel=0.1)


def test_conversations_find_their_past_in_the_cache() -> None:
    first = SimulatedRequest("a", 0.0, (Segment("a", 20),), 21)
    said = (Segment("a", 20), Segment(OUTPUT, 21), Segment("more", 9))
    second = SimulatedRequest("b", 2.5, said, 3, follows=0)
    run = SimulatedServer(ServerModel(PROFILE, TINY | {"num_blocks": 40}), [first, second]).run()
    assert run.log.arrival[1] == run.log.ended[0] + 2.5
    assert run.log.cached[1] == 40


def test_outputs_that_are_known_are_sampled() -> None:
    told = np.arange(100, 121, dtype=np.int32)
    first = SimulatedRequest("a", 0.0, np.arange(20, dtype=np.int32), 21)
    said = np.concatenate([np.arange(20, dtype=np.int32), told, [7, 7]]).astype(np.int32)
    second = SimulatedRequest("b", 2.5, said, 3, follows=0)
    model = ServerModel(PROFILE, TINY | {"num_blocks": 40})
    run = SimulatedServer(model, [first, second], {"a": told}).run()
    assert run.log.cached[1] == 40


def test_requests_that_cannot_run_and_clients_that_leave() -> None:
    load = [
        SimulatedRequest("long", 0.0, (Segment("a", 500),), 5),
        SimulatedRequest("empty", 0.0, (), 5),
        SimulatedRequest("impatient", 0.0, (Segment("b", 5),), 90, leaves_after_s=0.3),
        SimulatedRequest("slow", 0.0, (Segment("c", 5),), 90),
    ]
    model = ServerModel(PROFILE, TINY | {"num_blocks": 60}, timeout_s=0.6)
    run = SimulatedServer(model, load).run()
    assert run.log.outcome == ["impossible", "impossible", "abort", "timeout"]
    assert "max_model_len" in run.log.message[0]
    assert run.log.message[3] == "the request did not end within 0.6 s"
    assert run.log.ended[2:] == pytest.approx([0.3, 0.6], abs=0.03)


def test_more_ends_in_a_turn_than_are_remembered() -> None:
    load = [SimulatedRequest(f"{n}", 0.0, (Segment(f"{n}", 5),), 90) for n in range(12)]
    settings = TINY | {"num_blocks": 60, "queue_timeout_s": 0.1, "journal_requests": 2}
    told = SimulatedServer(ServerModel(PROFILE, settings), load, explained=["7", "11"]).run()
    assert told.log.outcome[6:] == ["timeout"] * 6
    assert "raise journal_requests" in told.explained["7"]
    assert "finished: timed out" in told.explained["11"]
