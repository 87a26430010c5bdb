"""A scheduler goes on from its state as if nothing had happened."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from paceline import ImageInput, Request, Scheduler, StepResult
from paceline.core.multimodal import ImageContent, MultimodalConfig
from paceline.core.settings.config import Config
from paceline.sched.policies.fcfs import Fcfs
from paceline.sched.replay.checkpoint import PlansInFlight, SchedulerCheckpoint
from paceline.sched.replay.records import RecordingError


class Stateful(Fcfs):
    """A policy from elsewhere that remembers something."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.seen: list[str] = []


def content(scheduler: Scheduler) -> bytes:
    return SchedulerCheckpoint(vars(scheduler), PlansInFlight()).encoded(scheduler.config)


def turn(scheduler: Scheduler) -> dict[str, Any]:
    plan = scheduler.plan(now=1.0)
    count = plan.rows.samples.astype(np.int32)
    scheduler.commit(plan, StepResult(np.full((len(plan.rows), 1), 5, np.int32), count), now=1.0)
    return plan.to_dict()


@pytest.mark.parametrize("policy", ["fcfs", "fair", f"{__name__}.Stateful"])
def test_a_scheduler_goes_on_from_its_state(policy: str) -> None:
    config = Config.of(max_num_seqs=3, max_model_len=64, num_blocks=24, block_size=4, policy=policy)
    scheduler = Scheduler(config)
    for number in range(6):
        prompt = np.arange(5 + number)
        request = Request(id=f"r{number}", prompt=prompt, max_tokens=9, tenant=f"t{number % 2}")
        scheduler.submit(request, now=0.0)
    for _ in range(4):
        turn(scheduler)
    other = SchedulerCheckpoint.decoded(content(scheduler), config).scheduler()
    assert other.snapshot() == scheduler.snapshot()
    other.check()
    while not scheduler.idle:
        assert turn(other) == turn(scheduler)
    assert other.idle
    assert other.explain("r5") == scheduler.explain("r5")


def test_images_go_on_from_their_state_without_their_content() -> None:
    config = Config.of(max_num_seqs=3, max_model_len=64, num_blocks=24, block_size=4)
    config = replace(config, encoder=MultimodalConfig(encoder_cache_size=8))
    scheduler = Scheduler(config)
    pixels = ImageContent.of("image", {"pixels": np.full(50_000, 7, np.uint8)})
    for number in range(4):
        images = (ImageInput("cat", 1, 5, pixels), ImageInput(f"dog{number}", 8, 6, pixels))
        prompt = np.arange(20) + 50 * number
        scheduler.submit(Request(id=f"r{number}", prompt=prompt, images=images), now=0.0)
    turn(scheduler)
    kept = content(scheduler)
    assert len(kept) < 50_000
    other = SchedulerCheckpoint.decoded(kept, config).scheduler()
    other.check()
    for _ in range(9):
        told = turn(scheduler)
        assert turn(other) == told
    assert scheduler.stats.encoded > 8


@pytest.mark.parametrize(
    "settings",
    [
        {"queue_timeout_s": 0.5},
        {"policy": "deadline", "refuse_late": True},
        {"speculation": "adaptive", "num_speculative_tokens": 3},
        {"discipline": "prefill_first", "max_wait": 1.0},
        {"preemption_mode": "auto", "swap_space": 8},
    ],
)
def test_every_optional_part_of_a_scheduler_goes_on_from_its_state(
    settings: dict[str, Any],
) -> None:
    sizes: dict[str, Any] = {"max_num_seqs": 1, "max_model_len": 64, "num_blocks": 24}
    config = Config.of(**sizes, **settings)
    scheduler = Scheduler(config)
    for name in "abc":
        request = Request(id=name, prompt=np.arange(5), max_tokens=3, deadline=0.5)
        scheduler.submit(request, now=0.0)
    other = SchedulerCheckpoint.decoded(content(scheduler), config).scheduler()
    while not scheduler.idle:
        assert turn(other) == turn(scheduler)
    assert other.idle


def test_a_state_of_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = Scheduler.create(num_blocks=8)
    before = content(scheduler)
    sound = Scheduler.__init__

    def newer(self: Scheduler, config: Config) -> None:
        sound(self, config)
        self.view.extra = 1  # pyright: ignore[reportAttributeAccessIssue]

    monkeypatch.setattr(Scheduler, "__init__", newer)
    with pytest.raises(RecordingError, match=r"SchedulerView has other attributes .*: extra"):
        SchedulerCheckpoint.decoded(before, scheduler.config)


def test_a_state_with_an_attribute_that_is_gone_is_refused() -> None:
    scheduler = Scheduler.create(num_blocks=8)
    scheduler.view.extra = 1  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(RecordingError, match="SchedulerView has other attributes in this version"):
        SchedulerCheckpoint.decoded(content(scheduler), scheduler.config)


def test_a_state_with_a_class_that_is_gone_is_refused() -> None:
    scheduler = Scheduler.create(num_blocks=8)
    before = content(scheduler).replace(b"SchedulerView", b"SchedulerOwls")
    with pytest.raises(RecordingError, match="SchedulerOwls"):
        SchedulerCheckpoint.decoded(before, scheduler.config)
