"""Drafts in simulations."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from paceline.core.errors import ConfigError
from paceline.core.settings.config import Config
from paceline.engine.loop.turn_times import TurnTimer
from paceline.simulator.device.profile import Profile
from paceline.simulator.device.timed_runner import (
    DraftedSequences,
    Drafting,
    TimedRunner,
    step_times,
)
from paceline.simulator.requests import SimulatedRequest
from paceline.simulator.results.figures import SimulationReport
from paceline.simulator.server import ServerModel, SimulatedRun, SimulatedServer
from paceline.testing.runner import VirtualClock
from paceline.workloads.call import Segment

SETTINGS = {"num_blocks": 400, "block_size": 8, "max_num_seqs": 4, "max_num_batched_tokens": 64}
FIXED = SETTINGS | {"max_model_len": 2048, "speculation": "fixed"}
ADAPTIVE = FIXED | {"speculation": "adaptive"}
# A position of a draft costs a tenth of a step.
PROFILE = Profile.of(
    {
        "format": 1,
        "decode": {"fixed_s": 0.01, "positions": [[1, 0], [2, 0.001]]},
        "mixed": {"fixed_s": 0.01, "positions": [[1, 0], [2, 0.001]]},
        "host": {"plan_s": 0.0005, "mixed_s": 0.0001, "commit_s": 0.0002},
    }
)


def request(name: str, tokens: int, at_s: float = 0.0) -> SimulatedRequest:
    return SimulatedRequest(name, at_s, (Segment(name, 10),), tokens)


def run(
    load: list[SimulatedRequest], drafting: Drafting, settings: dict[str, Any], drafts: int = 3
) -> SimulatedRun:
    settings = {**settings, "num_speculative_tokens": drafts}
    return SimulatedServer(ServerModel(PROFILE, settings, drafting=drafting), load).run()


@pytest.mark.parametrize(("acceptance", "steps"), [(1.0, 1 + 5), (0.0, 21)])
def test_a_step_yields_what_is_right(acceptance: float, steps: int) -> None:
    """The prompt yields one token, each step behind it one and the drafts that are right."""
    done = run([request("a", 21)], Drafting(acceptance), FIXED)
    assert (done.log.tokens[0], done.log.pieces[0], done.stats.steps) == (21, steps, steps)
    assert done.stats.accepted == acceptance * done.stats.drafted


def test_tokens_and_times_are_those_of_the_formula() -> None:
    done = run([request("a", 700)], Drafting(0.7, draft_s=0.001), FIXED)
    per_step = (1 - 0.7**4) / (1 - 0.7)
    report = SimulationReport.of(done, {})
    assert report.total.tokens_per_step == pytest.approx(per_step, rel=0.04)
    step_s = 0.01 + 3 * 0.001 + 0.0008 + 3 * 0.001  # 4 positions, the host, 3 drafts
    taken = float(done.log.ended[0] - done.log.first[0])
    assert taken == pytest.approx(step_s * (done.log.pieces[0] - 1), rel=0.01)
    # Drafts behind a wrong one are computed, and not right.
    assert report.acceptance == pytest.approx((per_step - 1) / 3, rel=0.04)


def test_a_draft_is_right_whatever_runs_beside_it() -> None:
    load = [request("a", 100), request("b", 150, 0.05), request("c", 50, 0.4)]
    alone = run(load[:1], Drafting(0.6), FIXED)
    together = run(load, Drafting(0.6), FIXED)
    again = run(load, Drafting(0.6), FIXED)
    other = run(load, Drafting(0.6, seed=1), FIXED)
    np.testing.assert_array_equal(together.log.ended, again.log.ended)
    assert together.log.pieces[0] == alone.log.pieces[0]
    assert together.log.pieces.tolist() != other.log.pieces.tolist()


@pytest.mark.parametrize(("depth", "blocks"), [(1, 400), (2, 400), (1, 16), (2, 16), (3, 16)])
def test_outputs_keep_their_lengths_and_tokens(depth: int, blocks: int) -> None:
    """Also if sequences are preempted, and steps with drafts are launched ahead."""
    load = [request(f"{n}", 20 + 13 * n, 0.01 * n) for n in range(6)]
    told = {one.id: np.arange(100, 100 + one.output_len, dtype=np.int32) for one in load}
    said = np.concatenate([np.full(10, 1, np.int32), told["0"], [7, 7]]).astype(np.int32)
    load.append(SimulatedRequest("later", 0.1, said, 3, follows=0))
    settings = FIXED | {"num_blocks": blocks, "num_speculative_tokens": 3}
    model = ServerModel(PROFILE, settings, depth, drafting=Drafting(0.7))
    server = SimulatedServer(model, load, told)
    done = server.run()
    server.scheduler.check()
    assert done.log.tokens.tolist() == [one.output_len for one in load]
    if blocks == 400:
        assert done.log.cached[-1] == 24, "what a later turn repeats is found"
    else:
        assert done.stats.preemptions > 0


def test_drafts_that_do_not_pay_pause() -> None:
    """The scheduler knows how long steps with drafts take."""
    load = [request(f"{n}", 400) for n in range(4)]
    plain = run(load, Drafting(0.0), ADAPTIVE, drafts=0)
    for drafting in (Drafting(0.0), Drafting(0.7, draft_s=0.02)):
        paused = run(load, drafting, ADAPTIVE)
        assert paused.log.ended.max() < 1.03 * plain.log.ended.max()
    good = run(load, Drafting(0.7), ADAPTIVE)
    assert good.log.ended.max() < 0.8 * plain.log.ended.max()


@pytest.mark.parametrize("depth", [1, 2])
def test_step_times_are_what_an_engine_measures(depth: int) -> None:
    drafting = Drafting(0.5, draft_s=0.0007)
    config = Config.of(**ADAPTIVE, num_speculative_tokens=3)
    clock = VirtualClock()
    runner = TimedRunner(PROFILE, clock, drafted=DraftedSequences(drafting, 4))
    measured = TurnTimer(runner, config, depth, clock).measure(60.0)
    assert measured is not None
    found = step_times(PROFILE, config, depth, drafting)
    for name in ("plain", "drafted", "least"):
        due, own = getattr(measured, name), getattr(found, name)
        assert [size for size, _ in own] == [size for size, _ in due]
        assert [taken for _, taken in own] == pytest.approx([taken for _, taken in due])


def test_mistakes_are_named() -> None:
    with pytest.raises(ConfigError, match=r"num_speculative_tokens is 2.*--acceptance"):
        SimulatedServer(ServerModel(PROFILE, {"num_speculative_tokens": 2}), [])
    with pytest.raises(ConfigError, match=r"acceptance is 1.5; it must lie in \[0, 1\]"):
        Drafting(1.5)
    with pytest.raises(ConfigError, match="draft_s is -1"):
        replace(Drafting(0.5), draft_s=-1.0)
