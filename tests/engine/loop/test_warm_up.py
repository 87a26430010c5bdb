"""Steps before the first request: which ones there are, and that nothing of them remains."""

from collections import deque
from typing import Any

import numpy as np
import pytest

from paceline import Scheduler
from paceline.core.capabilities import Capabilities
from paceline.core.multimodal import ImageInput
from paceline.core.plan import Plan, StepResult
from paceline.core.request import Request
from paceline.engine.loop.messages import EngineFailed
from paceline.engine.loop.warm_up import SAMPLINGS, WarmUp
from paceline.runner.models.model import Model
from paceline.runner.weights.dummy import Dummy
from tests.runner.driving import SETTINGS, drive, requests
from tests.runner.support import tiny
from tests.runner.test_runner import outputs, runner_for

LARGE = {"max_num_seqs": 8, "max_model_len": 40, "max_num_batched_tokens": 100, "num_blocks": 64}


class Watched:
    """A runner that takes no time."""

    capabilities = Capabilities(logprobs=True, prompt_logprobs=True, images=True)

    def __init__(self) -> None:
        self.residents: set[int] = set()
        self.requests: list[Request] = []
        self.scored: set[int] = set()  # positions of steps with prompts that are scored
        self.drafts = 0
        self.rows_of_images: set[int] = set()  # of the store of embeddings
        self.with_images: set[tuple[int, int]] = set()  # positions of steps, and those of images
        self._flight: deque[Plan] = deque()

    def launch(self, plan: Plan) -> None:
        self.residents -= set(plan.released)
        self.residents |= {new.slot for new in plan.admitted}
        self.requests += [new.request for new in plan.admitted]
        if any(one.sampling.prompt_logprobs for one in self.requests[-1:]):
            self.scored.add(plan.total)
        self.drafts = max(self.drafts, *plan.rows.drafts.tolist(), 0)
        if len(plan.embedded):
            self.with_images.add((plan.total, len(plan.embedded)))
            self.rows_of_images |= set(plan.embedded.source.tolist())
        if not plan.empty:
            self._flight.append(plan)

    def wait(self) -> StepResult:
        rows = self._flight.popleft().rows
        ids = np.full((len(rows), 1 + int(rows.drafts.max())), 7, np.int32)
        return StepResult(ids, rows.samples.astype(np.int32))

    def is_lost(self) -> bool:
        return False

    def close(self) -> None: ...


def warmed(
    runner: Any, depth: int = 1, image: ImageInput | None = None, **settings: Any
) -> list[tuple[int, int]]:
    """What it reports."""
    reports: list[tuple[int, int]] = []
    config = Scheduler.create(**LARGE | settings).config
    WarmUp(runner, config, depth, image).run(lambda done, total: reports.append((done, total)))
    return reports


@pytest.mark.parametrize("depth", [1, 2])
def test_scored_prompts_have_every_power_of_two_and_the_largest_step(depth: int) -> None:
    runner = Watched()
    warmed(runner, depth)
    assert {1, 2, 4, 8, 16, 32, 64, 100} <= runner.scored
    assert not runner.residents


def test_an_image_is_in_steps_of_every_size_in_which_it_fits() -> None:
    runner, image = Watched(), ImageInput("one", 0, 9)
    warmed(runner, image=image, encoder_cache_size=12)
    assert runner.with_images == {(positions, 9) for positions in (16, 32, 64, 99)}
    assert max(runner.rows_of_images) < 12
    assert not runner.residents


@pytest.mark.parametrize(
    "settings", [{"encoder_cache_size": 8}, {"max_num_encoder_input_tokens": 8}]
)
def test_an_image_that_no_step_computes_is_left_out(settings: dict[str, Any]) -> None:
    runner = Watched()
    assert warmed(runner, image=ImageInput("one", 0, 9), **settings) == warmed(Watched())
    assert not runner.with_images


def test_every_way_to_choose_a_token_is_used() -> None:
    runner = Watched()
    warmed(runner)
    assert {*SAMPLINGS} <= {one.sampling for one in runner.requests}
    assert any(one.min_tokens for one in runner.requests)
    assert any(one.silent for one in runner.requests)


def test_drafts_are_used_where_an_engine_has_them() -> None:
    plain, drafted = Watched(), Watched()
    reports = warmed(plain)
    assert reports == [(done, len(reports)) for done in range(len(reports))]
    runs = len(reports) - 1  # the last one repeats how tokens are chosen
    assert len(warmed(drafted, num_speculative_tokens=3)) == 2 * runs + 2
    assert (plain.drafts, drafted.drafts) == (0, 3)


@pytest.mark.parametrize(
    "settings", [{"max_num_seqs": 1}, {"max_model_len": 2}, {"num_blocks": 3, "max_model_len": 40}]
)
def test_small_engines_run_what_fits(settings: dict[str, Any]) -> None:
    runner = Watched()
    warmed(runner, **settings)
    assert not runner.residents


def test_a_device_that_is_lost_is_an_error() -> None:
    class Lost(Watched):
        def wait(self) -> StepResult:
            raise RuntimeError("an illegal memory access")

        def is_lost(self) -> bool:
            return True

    with pytest.raises(EngineFailed, match="before the first request"):
        warmed(Lost())


def test_a_step_that_fails_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    class Narrow(Watched):
        def wait(self) -> StepResult:
            if self._flight[0].total == 64:
                self._flight.clear()
                raise RuntimeError("out of memory")
            return super().wait()

    runner = Narrow()
    warmed(runner)
    failed = "a step of up to 64 positions failed at the start: step 1 failed: RuntimeError: out of"
    assert any(failed in one.getMessage() for one in caplog.records)
    assert not runner.residents


def test_requests_get_the_same_tokens_afterwards(caplog: pytest.LogCaptureFixture) -> None:
    model = Model.load(Dummy(tiny(), seed=3))
    scheduler = Scheduler.create(**SETTINGS)
    runner = runner_for(model, scheduler)
    WarmUp(runner, scheduler.config, 1).run(lambda done, total: None)
    assert not caplog.records, "a step has failed"
    expected, _ = outputs(model, requests())
    assert drive(scheduler, runner, requests()) == expected
