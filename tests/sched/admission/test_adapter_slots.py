"""Different adapters among residents."""

from paceline import Scheduler
from paceline.sched.admission.admission import MOST_OVERTAKEN
from tests.sched.support import DISCIPLINES, ask, finish_all, gate, small, step


def mixed(names: str, **settings: object) -> Scheduler:
    """Requests with the adapter that they are named after; "-" is none."""
    scheduler = small(max_num_seqs=8, num_blocks=64, **settings)
    for number, name in enumerate(names):
        adapter = "" if name == "-" else name
        scheduler.submit(ask(f"{name}{number}", 3, max_tokens=4, adapter=adapter), 0.0)
    return scheduler


@DISCIPLINES
def test_a_request_with_one_adapter_too_many_is_passed_over(discipline: str) -> None:
    scheduler = mixed("xyz-xz", max_loras=2, discipline=discipline)
    assert step(scheduler)["new"] == ["x0", "y1", "-3", "x4"]
    assert gate(scheduler) == ("an adapter slot", "z2", 1)
    assert scheduler.why()["z2"] == "for an adapter slot"
    scheduler.plan(2.0)
    assert "2.0 s for an adapter slot" in scheduler.explain("z2")


def test_without_the_setting_there_is_no_limit() -> None:
    assert step(mixed("xyz"))["new"] == ["x0", "y1", "z2"]


def test_a_request_without_an_adapter_needs_no_slot() -> None:
    assert step(mixed("x-y-", max_loras=1))["new"] == ["x0", "-1", "-3"]


def test_an_adapter_slot_is_free_after_the_last_request_that_uses_it() -> None:
    scheduler = mixed("xxy", max_loras=1)
    step(scheduler)
    assert scheduler.abort("x0", 0.0)
    assert step(scheduler)["new"] == []
    assert scheduler.abort("x1", 0.0)
    assert step(scheduler)["new"] == ["y2"]
    assert scheduler.state.table.adapters == {"y": 1}


def test_a_request_is_overtaken_for_a_bounded_time_only() -> None:
    """A stream of requests would keep the adapter of "y" out for ever."""
    scheduler = mixed("xy", max_loras=1)
    for number in range(2 * MOST_OVERTAKEN):
        scheduler.submit(ask(f"more{number}", 3, max_tokens=3, adapter="x"), 0.0)
        if "y1" in step(scheduler)["new"]:
            break
    else:
        raise AssertionError("it starves")
    finish_all(scheduler)


def test_a_better_request_displaces_residents_for_their_adapter() -> None:
    scheduler = small(policy="priority", preempt_on_arrival=True, max_loras=1)
    scheduler.submit(ask("a", 3, priority=5, adapter="x"), 0.0)
    step(scheduler)
    scheduler.submit(ask("b", 3, priority=1, adapter="y"), 0.0)
    plan = step(scheduler)
    assert (plan["new"], plan["preempted"]) == (["b"], ["a"])
    finish_all(scheduler)
