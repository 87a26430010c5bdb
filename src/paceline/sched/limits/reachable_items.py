"""Multimodal items that a row cannot have, however much of the step is left for it."""

from paceline.core.arrays import I32
from paceline.core.config import Config
from paceline.sched.items_ahead import ItemsAhead
from paceline.sched.limits.item_rows import cut
from paceline.sched.limits.limit import Limit, LimitView
from paceline.sched.limits.rows import WantedRows


class ReachableItems(Limit):
    """A row ends before an item for which the cache has no room now: what it would have had of the
    token budget is for other rows."""

    reason = "encoder"

    def __init__(self, items: ItemsAhead) -> None:
        self._items = items

    @classmethod
    def create(cls, config: Config, view: LimitView) -> "ReachableItems":
        return cls(view.items)

    def clip(self, rows: WantedRows) -> I32:
        return cut(self._items, rows, together=False)
