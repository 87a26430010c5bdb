"""Which residents a plan has rows for, and how many positions."""

import pytest

from tests.sched.support import Pipeline, ask, small, state


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
@pytest.mark.parametrize("max_tokens", [1, 2, 7])
def test_no_step_is_wasted_at_max_tokens(depth: int, max_tokens: int) -> None:
    """Edge case 26: All that is ever planned is the prompt and all outputs but the last."""
    scheduler = small()
    scheduler.submit(ask("a", 5, max_tokens=max_tokens), 0.0)
    pipeline = Pipeline(scheduler, depth).run()
    assert pipeline.planned("a") == 5 + max_tokens - 1
    assert scheduler.stats.stale_rows == 0


def test_running_does_not_mean_that_it_is_in_the_step() -> None:
    """Edge case 35: One whose last sample is still in flight has nothing to compute, and keeps its
    blocks."""
    scheduler = small()
    scheduler.submit(ask("a", 2, max_tokens=1), 0.0)
    scheduler.submit(ask("b", 2, max_tokens=9), 0.0)
    scheduler.plan(0.0)
    assert scheduler.plan(0.0).to_dict()["tokens"] == {"b": 1}
    assert scheduler.snapshot()["running"] == ["a", "b"]
    assert len(state(scheduler, "a")["blocks"][0]) == 1
    assert scheduler.why() == {}
