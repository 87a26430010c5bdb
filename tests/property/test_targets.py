"""Under `slo`, in endless overload, an aged request waits a bounded number of positions."""

from random import Random

import pytest

from paceline.sched.policies.slo import TURN
from tests.sched.policies.test_slo import POSITION_S, Bench
from tests.seeds import seeds


@pytest.mark.parametrize("seed", seeds(3))
def test_an_aged_request_is_admitted_within_its_bound(seed: int) -> None:
    """Before it, at most `TURN` times the prompts of those that aged before it and its own, and
    what one step admits."""
    random = Random(seed)
    ageing_s, most = random.choice([0.2, 0.5]), random.choice([200, 600])
    bench = Bench(itl_target_ms=40.0, ttft_target_ms=150.0, ageing_s=ageing_s)
    outcasts = {f"outcast{number}": random.randint(2500, 4000) for number in range(2)}
    sent, until, overtaking, waiting = 0, 0.0, 0, set(outcasts)
    bench.ask("pace", 20, outputs=300)
    for name, prompt in outcasts.items():
        bench.ask(name, prompt, outputs=2)
    while waiting:
        while until <= bench.now:
            size = random.randint(50, most)
            bench.ask(f"short{sent}", size, outputs=2)
            sent, until = sent + 1, until + size * POSITION_S / 4
        plan = bench.turn()
        waiting -= {new.request.id for new in plan.admitted}
        if bench.now > ageing_s + 0.1 and waiting:
            overtaking += sum(len(new.tokens) for new in plan.admitted)
        assert overtaking <= TURN * sum(outcasts.values()) + 4096
    assert sent > 20, "there was no overload, so this shows nothing"
