"""Rows to clip, written by hand: of residents, or of one arrival."""

import numpy as np

from paceline.core.arrays import I32, Index
from paceline.core.capabilities import StepCost
from paceline.core.request import Request, Sequence
from paceline.core.settings.config import Config
from paceline.sched.admission.images_ahead import ImagesAhead
from paceline.sched.admission.rows import ArrivalRow, ResidentRows, Used
from paceline.sched.slots import SlotTable
from paceline.sched.stats import Stats

LENGTH = 64


def row(*counts: int) -> I32:
    return np.array(counts, np.int32)


def sequence(serial: int = 0, prompt: int = 32, limit: int = LENGTH) -> Sequence:
    request = Request(id=f"r{serial}", prompt=list(range(prompt)))  # pyright: ignore[reportArgumentType]
    return Sequence(request, serial, limit, 0.0, request.prompt)


def residents(
    *want: int, left: int = 1_000, start: tuple[int, ...] = (), limit: int = LENGTH
) -> ResidentRows:
    """Residents that want so much, each from its start, or from 0."""
    table = SlotTable(max(len(want), 1), LENGTH)
    slots = [table.admit(sequence(one, limit=limit), 0, drafts=0) for one in range(len(want))]
    table.advance(np.array(slots, np.intp), row(*(start or (0,) * len(want))))
    return ResidentRows(table, np.array(slots, np.intp), row(*want), left)


def arrival(
    want: int,
    left: int = 1_000,
    first: bool = True,
    start: int = 0,
    limit: int = LENGTH,
    used: Used | None = None,
) -> ArrivalRow:
    return ArrivalRow(sequence(limit=limit), start, want, left, first, used or {})


class Fcfs:
    """A policy that gives residents what they want, as far as the budget goes."""

    def share(self, slot: Index, want: I32, budget: int) -> I32:
        return np.minimum(want, budget)


class View:
    """What limits look at, with nobody there."""

    cost: StepCost | None = None
    waiting = 0

    def __init__(self, **settings: int | bool) -> None:
        self.table = SlotTable(4, LENGTH)
        self.policy = Fcfs()
        self.images = ImagesAhead(config(max_num_seqs=4, **settings), self.table, Stats())


def config(**settings: float) -> Config:
    return Config.of(num_blocks=64, max_model_len=LENGTH, **settings)
