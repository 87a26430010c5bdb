"""The whole state as plain data, with exactly the keys that tools rely on."""

import json
from typing import Any

import pytest

from paceline import Scheduler
from tests.sched.support import ask, commit, crowded, finish_all, small, state, step

KEYS = {
    "step",
    "waiting",
    "parked",
    "running",
    "swapped",
    "requests",
    "free_blocks",
    "total_blocks",
    "host_free_blocks",
    "snapshots",
    "prefix_queries",
    "prefix_hits",
}
REQUEST_KEYS = {
    "state",
    "known",
    "planned",
    "computed",
    "prompt",
    "preemptions",
    "cached",
    "blocks",
}


def told(scheduler: Scheduler) -> dict[str, Any]:
    """A snapshot with the right keys that survives the way through JSON."""
    taken = scheduler.snapshot()
    assert set(taken) == KEYS
    for request in taken["requests"].values():
        children = request.get("children", {})
        assert set(request) == REQUEST_KEYS | ({"children"} if children else set())
        assert all(set(child) == REQUEST_KEYS for child in children.values())
    assert json.loads(json.dumps(taken)) == taken
    return taken


def test_of_nothing() -> None:
    assert told(small()) == {
        "step": 0,
        "waiting": [],
        "parked": {},
        "running": [],
        "swapped": [],
        "requests": {},
        "free_blocks": 16,
        "total_blocks": 16,
        "host_free_blocks": 0,
        "snapshots": 0,
        "prefix_queries": 0,
        "prefix_hits": 0,
    }


def test_of_a_waiting_request() -> None:
    scheduler = small()
    scheduler.submit(ask("a", 5), 0.0)
    taken = told(scheduler)
    assert taken["waiting"] == ["a"]
    assert taken["requests"]["a"] == {
        "state": "WAITING",
        "known": 5,
        "planned": 0,
        "computed": 0,
        "prompt": 5,
        "preemptions": 0,
        "cached": 0,
        "blocks": [[]],
    }


@pytest.mark.parametrize(
    ("reason", "named"),
    [
        ("grammar", "WAITING_FOR_GRAMMAR"),
        ("remote_kv", "WAITING_FOR_REMOTE_KV"),
        ("a visitor", "WAITING"),
    ],
)
def test_of_a_parked_request(reason: str, named: str) -> None:
    scheduler = small()
    scheduler.submit(ask("a", 5), 0.0, parked=reason)
    taken = told(scheduler)
    assert (taken["waiting"], taken["parked"]) == ([], {"a": reason})
    assert taken["requests"]["a"]["state"] == named


def test_of_a_running_request_with_work_in_flight() -> None:
    scheduler = small()
    scheduler.submit(ask("a", 5), 0.0)
    plan = scheduler.plan(0.0)
    taken = told(scheduler)
    assert (taken["step"], taken["running"], taken["free_blocks"]) == (1, ["a"], 14)
    assert taken["requests"]["a"] == {
        "state": "RUNNING",
        "known": 5,
        "planned": 5,
        "computed": 0,
        "prompt": 5,
        "preemptions": 0,
        "cached": 0,
        "blocks": plan.to_dict()["blocks"]["a"],
    }


def test_of_a_running_request_after_its_result() -> None:
    scheduler = small()
    scheduler.submit(ask("a", 5), 0.0)
    step(scheduler)
    now = told(scheduler)["requests"]["a"]
    assert (now["known"], now["planned"], now["computed"]) == (6, 5, 5)


def test_of_a_hit() -> None:
    scheduler = small()
    scheduler.submit(ask("a", range(9)), 0.0)
    scheduler.submit(ask("b", range(9)), 0.0)
    scheduler.plan(0.0)
    taken = told(scheduler)
    assert (taken["prefix_queries"], taken["prefix_hits"]) == (18, 8)
    blocks = {name: taken["requests"][name]["blocks"] for name in "ab"}
    assert blocks["a"][0][:2] == blocks["b"][0][:2]
    assert blocks["a"][0][2] != blocks["b"][0][2]
    assert taken["requests"]["b"]["cached"] == 8


def test_of_a_preempted_request() -> None:
    scheduler = small()
    scheduler.submit(ask("a", 9), 0.0)
    step(scheduler)
    scheduler.reset_prefix_cache(reset_running_requests=True)
    taken = told(scheduler)
    assert (taken["waiting"], taken["running"], taken["free_blocks"]) == (["a"], [], 16)
    now = taken["requests"]["a"]
    assert (now["state"], now["known"], now["planned"], now["computed"]) == ("PREEMPTED", 10, 0, 0)
    assert (now["preemptions"], now["blocks"]) == (1, [[]])


@pytest.mark.parametrize(
    ("how", "named"),
    [
        ("stop", "FINISHED_STOPPED"),
        ("length", "FINISHED_LENGTH"),
        ("abort", "FINISHED_ABORTED"),
        ("error", "FINISHED_ERROR"),
    ],
)
def test_of_an_ended_request_until_the_next_plan(how: str, named: str) -> None:
    scheduler = small()
    asked = ask("a", 5, max_tokens=1 if how == "length" else 4, stop_token_ids=(7,))
    scheduler.submit(asked, 0.0)
    plan = scheduler.plan(0.0)
    if how == "abort":
        scheduler.abort("a", 0.0)
    elif how == "error":
        scheduler.fail(plan, 0.0)
    else:
        commit(scheduler, plan, a=[7] if how == "stop" else [8])
    taken = told(scheduler)
    assert taken["requests"]["a"]["state"] == named
    assert taken["requests"]["a"]["blocks"] == [[]]
    assert (taken["waiting"], taken["running"], taken["free_blocks"]) == ([], [], 16)
    assert scheduler.plan(0.0).to_dict()["finished"] == ["a"]
    assert told(scheduler)["requests"] == {}


def test_an_id_used_again_is_told_as_it_is_now() -> None:
    """A new request under the id of one that just ended is here, and waits."""
    scheduler = small()
    scheduler.submit(ask("a", 5), 0.0)
    scheduler.abort("a", 0.0)
    scheduler.submit(ask("a", 7), 0.0)
    taken = told(scheduler)
    assert (taken["waiting"], taken["requests"]["a"]["state"]) == (["a"], "WAITING")
    assert taken["requests"]["a"]["prompt"] == 7


def test_the_waiting_stand_in_the_order_of_admission() -> None:
    scheduler = small(policy="priority", max_num_seqs=1)
    scheduler.submit(ask("low", 5, priority=2), 0.0)
    scheduler.submit(ask("high", 5, priority=1), 1.0)
    scheduler.submit(ask("same", 5, priority=1), 2.0)
    assert told(scheduler)["waiting"] == ["high", "same", "low"]


def test_the_aged_stand_where_they_will_be_admitted() -> None:
    """What waited too long goes first, and the picture of the queue says so."""
    scheduler = small(policy="priority", max_num_seqs=1, ageing_s=10.0)
    scheduler.submit(ask("running", 5, max_tokens=40), 0.0)
    step(scheduler)
    scheduler.submit(ask("old", 5, priority=2), 0.0)
    scheduler.submit(ask("new", 5, priority=1), 11.0)
    step(scheduler, 12.0)
    head = scheduler.state.queue.head(12.0)
    assert head is not None
    assert head.id == "old"
    assert told(scheduler)["waiting"] == ["old", "new"]


def test_the_running_stand_in_the_order_of_admission_whatever_their_slot() -> None:
    scheduler = small(max_num_seqs=3)
    for name, most in (("a", 9), ("b", 2), ("c", 9)):
        scheduler.submit(ask(name, 5, max_tokens=most), 0.0)
    step(scheduler)
    step(scheduler)
    scheduler.submit(ask("d", 5), 0.0)
    step(scheduler)
    assert told(scheduler)["running"] == ["a", "c", "d"]


def test_a_snapshot_is_a_copy() -> None:
    scheduler = small()
    scheduler.submit(ask("a", 5), 0.0)
    step(scheduler)
    before = told(scheduler)
    before["requests"]["a"]["blocks"][0].clear()
    before["running"].clear()
    assert state(scheduler, "a")["blocks"] != [[]]
    finish_all(scheduler)


# -- families and the host ---------------------------------------------------


def test_of_a_family_that_waits() -> None:
    scheduler = small()
    scheduler.submit(ask("a", 5, n=3), 0.0)
    taken = told(scheduler)
    assert taken["waiting"] == ["a"]
    children = taken["requests"]["a"]["children"]
    assert list(children) == ["0", "1", "2"]
    assert {child["state"] for child in children.values()} == {"WAITING"}


def test_of_a_family_that_has_forked() -> None:
    """A request runs once, however many sequences it has."""
    scheduler = small()
    scheduler.submit(ask("a", 9, n=2), 0.0)
    scheduler.submit(ask("b", 2), 0.0)
    for _ in range(2):
        step(scheduler)
    taken = told(scheduler)
    assert taken["running"] == ["a", "b"]
    one, other = taken["requests"]["a"]["children"].values()
    assert one == {key: taken["requests"]["a"][key] for key in REQUEST_KEYS}
    assert one["blocks"][0][:2] == other["blocks"][0][:2]
    assert one["blocks"][0][2] != other["blocks"][0][2]
    assert (one["known"], other["known"]) == (10, 10)


def test_of_a_family_of_which_one_has_ended() -> None:
    scheduler = small()
    scheduler.submit(ask("a", 3, n=2, eos_token_ids=(5,)), 0.0)
    step(scheduler)
    step(scheduler, **{"0_a": [5]})
    children = told(scheduler)["requests"]["a"]["children"]
    assert (list(children), children["1"]["state"]) == (["1"], "RUNNING")


def test_of_a_family_that_has_ended() -> None:
    scheduler = small()
    scheduler.submit(ask("a", 3, n=2, max_tokens=1), 0.0)
    finish_all(scheduler)
    assert "children" not in told(scheduler)["requests"]["a"]
    assert state(scheduler, "a")["state"] == "FINISHED_LENGTH"


def test_of_one_on_the_host() -> None:
    scheduler = crowded(preemption_mode="swap", swap_space=4)
    step(scheduler)
    taken = told(scheduler)
    assert (taken["swapped"], taken["waiting"], taken["host_free_blocks"]) == (["b"], [], 3)
    assert taken["requests"]["b"]["state"] == "SWAPPED"
    assert (taken["requests"]["b"]["known"], taken["requests"]["b"]["blocks"]) == (5, [[]])
