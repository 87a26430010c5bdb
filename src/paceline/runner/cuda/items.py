"""Multimodal items of resident sequences on a GPU."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np

from paceline.core.plan import Plan
from paceline.core.request import Request
from paceline.runner.cuda.model import CudaModel
from paceline.runner.cuda.state import CudaState
from paceline.runner.encoder_store import EncoderStore, ItemEncoder


class CudaItems:
    """The encoder store is the end of the table of token embeddings:

        table   [ embeddings of the vocabulary ][ rows of the encoder store ]
        id        0 ... vocabulary - 1            vocabulary + row

    So a step reads the embeddings of items as it reads those of tokens, also in a captured graph.
    While it is launched, positions of items have the ids of their rows; then they have their
    tokens again. Models that know no items read `item_tokens` in their place.
    """

    def __init__(self, encoder: ItemEncoder, model: CudaModel, state: CudaState) -> None:
        self._store = EncoderStore(encoder, model.item_table)
        self._first, self._stand_for = model.first_item_id, model.item_tokens
        self._state = state

    def encode(self, plan: Plan, requests: Mapping[int, Request]) -> None:
        """Encode what a plan lists; `requests` are those in the slots."""
        if plan.encode:
            self._store.encode(plan.encode, requests)

    @contextmanager
    def in_place(self, plan: Plan) -> Iterator[None]:
        """Let positions of items have the ids of their rows."""
        read, tokens = plan.embedded, self._state.tokens.view(-1)
        if not len(read):
            yield
            return
        width = self._state.tokens.shape[1]
        position = plan.start[read.row] + read.place  # no drafts are in flight before a prompt ends
        at = plan.rows.slot[read.row] * width + position
        there, ids = self._state.send(at.astype(np.int32), read.source + np.int32(self._first))
        index = there.long()
        before = tokens.index_select(0, index)
        self._stand_for.index_copy_(0, (ids - self._first).long(), before)
        tokens.index_copy_(0, index, ids)
        try:
            yield
        finally:
            tokens.index_copy_(0, index, before)
