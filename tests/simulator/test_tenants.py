"""A tenant among others that send more than the server can do."""

import numpy as np
import pytest

from paceline.simulator.device.profile import Profile
from paceline.simulator.requests import SimulatedRequest
from paceline.simulator.server import ServerModel, SimulatedRun, SimulatedServer
from paceline.workloads.call import Segment

SECONDS = 8.0
FIRST_S, NEXT_S = 0.5, 0.04  # targets: the first token, and each later one on average


def load(tenant: str, rate: float, seed: int) -> list[SimulatedRequest]:
    random = np.random.default_rng(seed)
    times = np.cumsum(random.exponential(1 / rate, int(SECONDS * rate))).tolist()
    return [
        SimulatedRequest(
            f"{tenant} {number}",
            at,
            (Segment(f"{tenant} {number}", int(random.integers(200, 2000))),),
            int(random.integers(20, 100)),
            tenant=tenant,
        )
        for number, at in enumerate(times)
    ]


def attained(run: SimulatedRun, tenant: str) -> float:
    """The share of a tenant's requests within both targets."""
    log = run.log
    own = [row for row, one in enumerate(run.requests) if one.tenant == tenant]
    pace = (log.last[own] - log.first[own]) / (log.tokens[own] - 1)
    return float(np.mean((log.first[own] - log.arrival[own] <= FIRST_S) & (pace <= NEXT_S)))


@pytest.mark.parametrize(("policy", "others"), [("slo", 0.3), ("fair", 0.0)])
def test_targets_protect_a_tenant_in_steps_of_any_size(policy: str, others: float) -> None:
    """With the largest steps of a GPU, and a flood of five times what the server can do."""
    targets = {"ttft_target_ms": 1e3 * FIRST_S, "itl_target_ms": 1e3 * NEXT_S, "policy": policy}
    model = ServerModel(Profile.load("h200-qwen3-8b"), targets)
    requests = sorted([*load("quiet", 8, 5), *load("flood", 120, 6)], key=lambda one: one.at_s)
    run = SimulatedServer(model, requests).run()
    assert attained(run, "quiet") >= 0.95
    assert attained(run, "flood") >= others


@pytest.mark.parametrize(("policy", "least", "most"), [("fair", 0.95, 1.0), ("fcfs", 0.0, 0.5)])
def test_a_flood_of_one_tenant_leaves_another_its_goodput(
    policy: str, least: float, most: float
) -> None:
    """`fair` bounds waiting, and the step budget bounds how much prompts of others slow decodes."""
    settings = {"policy": policy, "max_num_batched_tokens": 1024}
    model = ServerModel(Profile.load("h200-qwen3-8b"), settings)
    requests = sorted([*load("quiet", 3, 1), *load("flood", 40, 2)], key=lambda one: one.at_s)
    assert least <= attained(SimulatedServer(model, requests).run(), "quiet") <= most
