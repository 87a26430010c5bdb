"""The sequences of open requests of several engines, and the tokens that each has so far."""

from dataclasses import replace

import numpy as np

from paceline.core.arrays import I64
from paceline.core.request import Request
from paceline.engine.core.choice_rows import NOBODY, ROW, ChoiceRows
from paceline.engine.core.messages import Delivery
from paceline.engine.core.token_pages import extended


class SequenceRows:
    """Engines report a sequence under a handle of ours, front ends know it under one of theirs.

    So a row is found without a search, and a delivery costs no Python for each of its rows.
    `_theirs` has the handle of the front end for each row.
    """

    def __init__(self) -> None:
        self._rows = ChoiceRows[None]()
        self._theirs: I64 = np.empty(0, np.int64)

    def add(self, request: Request) -> Request:
        """The request as an engine gets it."""
        width = request.width
        own = replace(request, handle=self._rows.next_handle(width))
        self._rows.open((), own.handle, width, deferred=True)
        if len(self._theirs) < len(self._rows.handle):
            self._theirs = extended(self._theirs, len(self._rows.handle))
        first = own.handle & ROW
        self._theirs[first : first + width] = request.handle + np.arange(width)
        return own

    def delivered(self, delivery: Delivery) -> Delivery:
        """Keep the tokens of a delivery; returns it as the front ends know its sequences."""
        new = self._rows.new_tokens(delivery)
        self._rows.tokens.append(new.row, new.ids, new.count)
        theirs = np.full(len(delivery.handle), NOBODY)
        theirs[new.place] = self._theirs[new.row]
        return replace(delivery, handle=theirs)

    def tokens(self, own: Request) -> list[tuple[int, ...]]:
        """The tokens that each sequence of a request has so far."""
        first = own.handle & ROW
        return [tuple(self._rows.tokens.read(first + child)) for child in range(own.width)]

    def release(self, own: Request) -> None:
        """A request of `add` has ended."""
        self._rows.release(own.handle, own.width)
