"""Plans that cross a process border are the same plans."""

from collections import deque
from dataclasses import fields
from typing import Any

import msgspec
import numpy as np

from paceline import Request, Scheduler
from paceline.core.multimodal import Embedded, Encoding, ImageContent, ImageInput
from paceline.core.plan import Admitted, Grown, Plan, StateMoves, StepResult
from paceline.core.sampling import Sampling
from paceline.engine.transport.plan_wire import EncodedPlan, PlanReader, PlanWriter
from paceline.engine.transport.wire import encoder
from paceline.testing.oracle import OracleRunner
from tests.runner.driving import SETTINGS, TIGHT, drive, requests

NOT_SENT = {"preempted", "finished", "encode", "cells"}


def same(one: Any, other: Any) -> bool:
    """Equal fields, however deep."""
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    if hasattr(one, "__dataclass_fields__"):
        names = [field.name for field in fields(one) if field.name not in NOT_SENT]
        return all(same(getattr(one, name), getattr(other, name)) for name in names)
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


class Sent:
    """An oracle that gets plans from another process, as it were."""

    def __init__(self, runner: OracleRunner) -> None:
        self._runner, self._results = runner, deque[StepResult]()
        self._writer, self._reader = PlanWriter(), PlanReader()
        self._decoder = msgspec.msgpack.Decoder(EncodedPlan)
        self._before: tuple[Plan, Plan] | None = None
        self.shared = 0  # plans with the rows of the plan before

    def launch(self, plan: Plan) -> None:
        frame = encoder.encode(self._writer.encoded(plan))
        found = self._reader.plan(self._decoder.decode(frame))
        assert same(plan, found)
        if self._before is not None:
            given, got = self._before
            is_same = plan.rows is given.rows
            assert (found.rows is got.rows) == is_same
            self.shared += is_same
        self._before = plan, found
        result = self._runner.run(found)
        if not found.empty:
            self._results.append(result)

    def wait(self) -> StepResult:
        return self._results.popleft()


def test_a_schedule_runs_on_plans_that_were_sent() -> None:
    changes: dict[str, Any] = {**TIGHT, "preemption_mode": "swap", "swap_space": 32}
    scheduler = Scheduler.create(**SETTINGS | changes)
    cache = scheduler.config.cache
    oracle = OracleRunner(cache.num_blocks, cache.block_size, 64, host_blocks=32)
    runner = Sent(oracle)
    drive(scheduler, runner, requests(n=2, sampling=Sampling(temperature=0.5), seed=3), depth=2)
    assert scheduler.stats.swapped_in_blocks
    assert runner.shared


def test_images_groups_of_layers_and_states() -> None:
    none = Scheduler.create().plan(now=0.0).rows
    index, block = np.array([1]), np.array([2], np.int32)
    content = ImageContent.of("image", {"pixels": np.zeros((2, 2))})
    images = (ImageInput("x", 0, 2, content),)
    request = Request(id="a", prompt=[1, 2, 3], images=images)
    plan = Plan(
        3,
        none,
        none.count,
        Grown(index, index, block, (Grown(index, index, block),)),
        (Admitted(1, request, request.prompt, 0, (4,), False, ((5, -1),)),),
        chosen=((1, (7, 8)),),
        encode=(Encoding(1, 0, "x", block),),
        embedded=Embedded(index, block, block),
        states=StateMoves(
            saves_before=((1, (2, 3)),),
            swap_out=((2, (1,)),),
            copies=((1, 2),),
            loads=((3, (4,)),),
            swap_in=((4, (9, 8)),),
            saves=((1, (5,)),),
            block_copies=((6, 7),),
        ),
    )
    frame = encoder.encode(PlanWriter().encoded(plan))
    found = PlanReader().plan(msgspec.msgpack.decode(frame, type=EncodedPlan))
    assert same(plan, found)
    assert not found.encode
    (image,) = found.admitted[0].request.images
    assert image.content == content.without_cells()
    assert image.content.shape("pixels") == (2, 2)
