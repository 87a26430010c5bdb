"""The multimodal items of a step: `max_num_encoder_input_tokens` and `encoder_cache_size`."""

from paceline.core.arrays import I32
from paceline.core.config import Config
from paceline.sched.items_ahead import ItemsAhead
from paceline.sched.limits.item_rows import covering, cut
from paceline.sched.limits.limit import Limit, LimitView
from paceline.sched.limits.rows import Used, WantedRows


class EncoderBudget(Limit):
    """Rows are served in order; one ends before an item for which the rows before it leave no
    budget or no room. An item that several rows need counts once."""

    reason = "encoder"

    def __init__(self, items: ItemsAhead) -> None:
        self._items = items

    @classmethod
    def create(cls, config: Config, view: LimitView) -> "EncoderBudget":
        return cls(view.items)

    @property
    def counts(self) -> bool:
        return self._items.any

    def clip(self, rows: WantedRows) -> I32:
        return cut(self._items, rows, together=True)

    def spend(self, rows: WantedRows, used: Used) -> None:
        start = rows.start
        for row in covering(self._items, rows):
            want = int(rows.want[row])
            self._items.reach(rows.sequence(row), int(start[row]), want, want, used)
