"""What the encoder did in a step that has come back."""

from paceline.sched.result_rows import ResultHook, ResultRows


class EncodedItems(ResultHook):
    """Drops items that residents have passed. What a step encoded is kept from now on."""

    def arrived(self, rows: ResultRows) -> None:
        if self._state.items.any or rows.plan.encode:
            self._state.items.landed(rows.plan)
