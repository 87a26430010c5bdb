"""Which positions of a step a request pools."""

import pytest

from paceline import Scheduler
from paceline.core.pool_spans import pool_spans
from paceline.core.request import Request

PROMPT = list(range(10))


def spans(kind: str, budget: int) -> list[list[tuple[int, int, int, int]]]:
    """Row, begin, first and count of the spans of each step, beside another row."""
    scheduler = Scheduler.create(
        max_num_batched_tokens=budget, max_num_seqs=4, num_blocks=16, max_model_len=32
    )
    reads = kind == "last"
    asked = Request(id="a", prompt=PROMPT, max_tokens=1, pooling=kind, reads_cache=reads)
    for request in (Request(id="b", prompt=[5, 6], max_tokens=9), asked):
        scheduler.submit(request, now=0.0)
    found: list[list[tuple[int, int, int, int]]] = []
    for _ in range(-(-(len(PROMPT) + 2) // (budget - 1))):
        plan = scheduler.plan(now=0.0)
        slots = {new.slot: new.request for new in plan.admitted if new.request.pooling}
        pooling = found_slots(plan.rows.slot.tolist(), plan.rows.labels, asked) | slots
        parts = pool_spans(plan, plan.start.tolist(), pooling)
        found.append([(one.row, one.begin, one.first, one.count) for one in parts])
    return found


def found_slots(slots: list[int], labels: list[str], asked: Request) -> dict[int, Request]:
    return {slot: asked for slot, label in zip(slots, labels, strict=True) if label == asked.id}


@pytest.mark.parametrize(
    ("kind", "due"),
    [
        ("mean", [[(1, 2, 0, 4)], [(1, 1, 4, 5)], [(1, 1, 9, 1)]]),
        ("cls", [[(1, 2, 0, 1)], [], []]),
        ("last", [[], [], [(1, 1, 9, 1)]]),
    ],
)
def test_in_chunks(kind: str, due: list[list[tuple[int, int, int, int]]]) -> None:
    assert spans(kind, budget=6) == due
