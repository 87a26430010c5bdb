"""A runner driven by the real scheduler, in every way that must give the same tokens."""

from collections import deque
from typing import Any

from paceline import Request, Scheduler, StepResult
from paceline.core.plan import Outputs, Plan
from paceline.engine.grammar.constrained_requests import ConstrainedRequests
from paceline.runner.models.config import ModelConfig
from paceline.runner.models.layer_groups import one_group
from paceline.wiring.memory import state_bytes
from paceline.wiring.settings import block_bytes

SETTINGS: dict[str, Any] = {
    "max_num_seqs": 8,
    "max_num_batched_tokens": 64,
    "max_model_len": 64,
    "num_blocks": 64,
    "block_size": 4,
}
TIGHT: dict[str, Any] = {"num_blocks": 17}

WAYS: dict[str, dict[str, Any]] = {
    "ahead": {"depth": 3},
    "prefill first": {"discipline": "prefill_first", "depth": 2},
    "in small pieces": {"max_num_batched_tokens": 8},
    "without the prefix cache": {"enable_prefix_caching": False},
    "recomputed": TIGHT,
    "recomputed, ahead": {**TIGHT, "depth": 2, "discipline": "prefill_first"},
    "swapped": {**TIGHT, "preemption_mode": "swap", "swap_space": 32},
    "swapped, ahead": {**TIGHT, "preemption_mode": "swap", "swap_space": 32, "depth": 3},
    "other blocks": {"block_size": 16, "num_blocks": 32},
}


def for_states(settings: dict[str, Any], model: ModelConfig) -> dict[str, Any]:
    """The settings of a scheduler for a model, of which layers may keep states."""
    if model.states is None:
        return settings
    groups = one_group(model.windows)
    blocks = -(-state_bytes(model) // block_bytes(model, settings["block_size"], groups=groups))
    return {**settings, "state_blocks": blocks}


def drive(
    scheduler: Scheduler,
    runner: Any,
    asked: list[Request],
    depth: int = 1,
    constrained: ConstrainedRequests | None = None,
) -> dict[str, Any]:
    """What each request, or child, got."""

    def landed(plan: Plan) -> Outputs:
        result = runner.wait()
        if constrained is not None:
            result = constrained.accept(plan, result, scheduler.view.ahead(plan.rows))
        return scheduler.commit(plan, result, now=0.0)

    for request in asked:
        scheduler.submit(request, now=0.0)
        if constrained is not None and request.constraint is not None:
            assert constrained.begin(request, lambda _: None)
    got: dict[str, Any] = {}
    flight: deque[Plan] = deque()
    while not scheduler.idle:
        plan = scheduler.plan(now=0.0)
        if constrained is not None:
            constrained.follow(plan)
        runner.launch(plan)
        if not plan.empty:
            flight.append(plan)
        if plan.empty and not flight:
            told = scheduler.commit(plan, StepResult.of(plan, {}), now=0.0)
        elif plan.empty or len(flight) == depth:
            told = landed(flight.popleft())
        else:
            continue
        for label, new in told.to_dict().items():
            got.setdefault(label, []).extend(new["tokens"])
            if "choices" in new:
                got[label] = new["choices"]
        for end in told.finished if constrained is not None else ():
            if end.child < 0:
                constrained.forget(end.request_id)
    scheduler.check()
    assert scheduler.usage == 0
    return got


def requests(shortest: int = 20, **fields: Any) -> list[Request]:
    """Each has a token more than the one before it, from `shortest` on."""
    shared = [5, 9, 2, 7, 1, 1, 3]
    prompts = [[4, 4, 8], [*shared, 6, 5], [*shared, 2], [33] * 14, [7, 8, 7, 8, 7, 8]]
    return [
        Request(id=f"r{i}", prompt=prompt, max_tokens=shortest + i, **fields)  # pyright: ignore[reportArgumentType]
        for i, prompt in enumerate(prompts)
    ]
