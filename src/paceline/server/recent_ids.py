"""The ids of recent requests of all processes of a server."""

from hashlib import blake2b

import numpy as np

from paceline.core.arrays import F64

REMEMBERED_IDS = 4096


class RecentIds:
    """A process writes the digests of its own ids, the oldest one first replaced.

    It writes before it reads, so that of two processes with the same id at least one sees it. If
    both do, both choose another name.
    """

    SIZE = 1 + REMEMBERED_IDS  # the number of ids so far, and the digests of the latest

    def __init__(self, rows: F64, row: int) -> None:
        self._rows, self._row = rows.view(np.int64), row  # [processes, SIZE]

    def claim(self, request_id: str) -> bool:
        """Remember an id. False if another process has had it recently."""
        if len(self._rows) == 1:
            return True
        digest = int.from_bytes(blake2b(request_id.encode(), digest_size=8).digest(), signed=True)
        own = self._rows[self._row]
        own[1 + own[0] % REMEMBERED_IDS] = digest
        own[0] += 1
        found = (self._rows[:, 1:] == digest).any(axis=1)
        found[self._row] = False
        return not found.any()
