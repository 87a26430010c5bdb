"""The budget of a step, for residents and for an arrival."""

from paceline.sched.admission.limits import Budget
from tests.sched.admission.limit_support import View, arrival, config, residents
from tests.sched.support import DISCIPLINES, PROMPT, ask, finish_all, small, step


def test_rows_are_served_in_order_until_the_budget_is_spent() -> None:
    limit = Budget.create(config(), View())
    assert limit.clip(residents(3, 4, 3, left=5)).tolist() == [3, 2, 0]
    assert limit.clip(arrival(4, left=3)).tolist() == [3]
    assert limit.clip(arrival(4, left=0)).tolist() == [0]


@DISCIPLINES
def test_the_budget_is_compared_with_what_has_to_be_computed(discipline: str) -> None:
    """Edge case 69: A mostly cached prompt longer than what is left of the budget gets in."""
    scheduler = small(
        enable_chunked_prefill=False,
        max_num_batched_tokens=16,
        max_model_len=16,
        discipline=discipline,
    )
    scheduler.submit(ask("a", PROMPT, max_tokens=1), 0.0)
    finish_all(scheduler)
    scheduler.submit(ask("b", 12, max_tokens=1), 0.0)
    scheduler.submit(ask("c", PROMPT, max_tokens=1), 0.0)
    assert step(scheduler)["tokens"] == {"b": 12, "c": 1}
