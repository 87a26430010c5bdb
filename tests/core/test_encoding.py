"""What a step encodes and reads."""

import numpy as np

from paceline import ImageInput, Request, Scheduler
from paceline.core.multimodal import NOTHING_EMBEDDED, Embedded


def test_a_plan_tells_what_it_encodes_by_request() -> None:
    scheduler = Scheduler.create(num_blocks=16, block_size=4, max_model_len=32)
    images = (ImageInput("cat", 1, 2), ImageInput("dog", 4, 1))
    request = Request("a", [1] * 6, images=images)  # pyright: ignore[reportArgumentType]
    scheduler.submit(request, now=0.0)
    plan = scheduler.plan(now=0.0)
    assert plan.to_dict()["encoder"] == {"a": [0, 1]}
    assert [one.identity for one in plan.encode] == ["cat", "dog"]
    assert plan.embedded.offset.tolist() == [1, 2, 4]


def test_the_number_of_positions() -> None:
    column = np.zeros(3, np.int32)
    assert len(Embedded(np.zeros(3, np.intp), column, column)) == 3
    assert len(NOTHING_EMBEDDED) == 0
