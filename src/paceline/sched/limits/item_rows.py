"""How rows are cut before multimodal items that they cannot have."""

import numpy as np

from paceline.core.arrays import I32
from paceline.sched.items_ahead import ItemsAhead
from paceline.sched.limits.rows import WantedRows


def covering(items: ItemsAhead, rows: WantedRows) -> list[int]:
    """The rows that may cover an item."""
    if rows.arriving:
        return [0] if rows.sequence(0).request.items and rows.want[0] else []
    if not items.any:
        return []
    return np.flatnonzero(items.is_ahead[rows.slot] & (rows.want > 0)).tolist()


def cut(items: ItemsAhead, rows: WantedRows, together: bool) -> I32:
    """Positions of each row before an item that it cannot have, besides what the rows before it
    claim, if `together`, or else as if it were alone. A prompt that may not be cut gets none."""
    some = covering(items, rows)
    if not some:
        return rows.want
    count, start, claims = rows.want.copy(), rows.start, dict(rows.used)
    for row in some:
        want, rest = int(count[row]), rows.rest_of(row)
        used = claims if together else dict(rows.used)
        reached = items.reach(rows.sequence(row), int(start[row]), want, rest, used)
        is_refused = rows.arriving and not items.cuts_prompts and reached < rest
        count[row] = 0 if is_refused else reached
    return count
