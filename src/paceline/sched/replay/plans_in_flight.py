"""The plans of a recorded run that its next calls may name."""

import numpy as np

from paceline.core.plan import Pairs, Plan, Rows

REMEMBERED = 1024  # steps without rows


class PlansInFlight:
    """Plans by step, from `plan` until their result is committed or given up.

    The blocks that steps without rows moved are remembered longer: a caller may commit such a
    step twice, and whether its plan was empty decides what the scheduler does then.
    """

    def __init__(self) -> None:
        self._plans: dict[int, Plan] = {}
        self._moves: dict[int, Pairs] = {}  # of steps that had no rows

    def add(self, plan: Plan) -> None:
        if plan.empty:
            return
        self._plans[plan.step] = plan
        if not len(plan.rows):
            self._moves[plan.step] = plan.copies + plan.swap_out + plan.swap_in
            if len(self._moves) > REMEMBERED:
                del self._moves[next(iter(self._moves))]

    def to_commit(self, step: int, rows: int) -> Plan:
        """The plan of a step. One that is no longer in flight is replaced by a stand-in."""
        plan = self._plans.get(step)
        return plan if plan is not None else stand_in(step, rows, self._moves.get(step, ()))

    def committed(self, step: int) -> None:
        self._plans.pop(step, None)

    def clear(self) -> None:
        self._plans.clear()

    def give_up(self, step: int) -> Plan:
        """The plan of a step that is lost; with it, all steps in flight are."""
        plan = self._plans.get(step)
        if plan is None:
            return stand_in(step, 1)
        self._plans.clear()
        return plan


def stand_in(step: int, rows: int, copies: Pairs = ()) -> Plan:
    """A plan that is no longer in flight: a scheduler reads only these parts of it."""
    none, names = np.zeros(rows, np.int32), np.full(rows, "", object)
    slot, serial = none.astype(np.intp), none.astype(np.int64)
    samples = none.astype(np.bool_)
    return Plan(
        step, Rows(slot, none, serial, names, none, none, none, samples), none, copies=copies
    )
