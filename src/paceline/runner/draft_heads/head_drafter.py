"""Drafting with a head, from the inputs of some layers of the model."""

from abc import abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor

from paceline.core.errors import ConfigError
from paceline.core.plan import Plan
from paceline.core.settings.features import SpeculationConfig
from paceline.runner.attention_backend import Attention
from paceline.runner.batch import Batch, ImageEmbeddings, batch_of_slots
from paceline.runner.draft_heads.head import DraftHead, HeadWeights
from paceline.runner.model_drafter import ModelDrafter
from paceline.runner.models.config import ModelConfig
from paceline.runner.proposer import DraftingFor, DraftInput


class HeadDrafter(ModelDrafter):
    """Drafts with a head on a CPU.

    Position i of the head needs the token at i + 1. `observe` computes all positions of a step, and
    keeps the hidden state for the first draft, so a sequence gets drafts from its second step in a
    slot on. The last position of a prefix hit was computed with the next token of another sequence;
    this makes drafts slightly worse, but does not change the output.
    """

    def __init__(self, config: SpeculationConfig) -> None:
        super().__init__(config)
        self._head: DraftHead | None = None
        self._attention: Attention | None = None
        self._embedding = torch.zeros(0)  # [vocab, width]
        self._is_shared = False  # is it the model's, which includes images?
        self._ids = torch.arange(0)  # [draft_vocab]; token ids
        self._hidden = torch.zeros(0)  # [slots, width]
        self._follows = torch.arange(0)  # [slots]; tokens before this hidden state

    @classmethod
    @abstractmethod
    def load_head(cls, weights: HeadWeights, max_model_len: int | None = None) -> DraftHead:
        """Load a head, for sequences up to this length."""

    def use(
        self, head: DraftHead, ids: Tensor, embedding: Tensor | None, attention: Attention
    ) -> None:
        """Draft with these weights. `ids` [draft_vocab] are token ids; the embedding is the model's
        if there is none."""
        self._head, self._ids, self._attention = head, ids, attention
        if embedding is not None:
            self._embedding = embedding

    @property
    def head(self) -> DraftHead:
        if self._head is None:
            proposer = self.config.proposer
            raise ConfigError(f"proposer {proposer!r} needs a head: name it in speculative_config")
        return self._head

    def store_config(self) -> ModelConfig:
        return self.head.decoder

    def attach(self, runner: DraftingFor) -> None:
        super().attach(runner)
        self.layers = self.head.layers_of(runner.model.config)
        if not len(self._embedding):
            self._embedding, self._is_shared = runner.model.plain_embedding(), True
        slots, width = len(runner.columns.position), self.head.decoder.width
        self._hidden = torch.zeros(slots, width)
        self._follows = torch.full((slots,), -1)

    def follow(self, plan: Plan) -> None:
        super().follow(plan)
        for new in plan.admitted:
            self._follows[new.slot] = -1

    def observe(self, batch: Batch, slot: Tensor, inputs: Tensor | None) -> None:
        assert inputs is not None
        columns, start = self.runner.columns, batch.row_start[:-1]
        owner = torch.repeat_interleave(slot, batch.row_start.diff())
        following = F.embedding(columns.tokens[owner, batch.position + 1], self._embedding)
        if batch.images is not None and self._is_shared:
            show(following, batch.images, start)
        hidden = self._forward(following, self.head.fuse(inputs), batch)
        stands = columns.position[slot]
        self._hidden[slot] = hidden[start + stands - batch.position[start] - 1]
        self._follows[slot] = stands + 1

    def is_ready(self, rows: DraftInput) -> Tensor:
        return (rows.number > 0) & (self._follows[rows.slot] == rows.known)

    def next_logits(self, offset: int, slot: Tensor, known: Tensor, latest: Tensor) -> Tensor:
        hidden = self._hidden[slot]
        if offset:
            columns, size = self.runner.columns, self.runner.block_size
            one = torch.ones_like(slot)
            batch = batch_of_slots(columns, size, slot, known + offset - 2, one)
            embedded = F.embedding(latest, self._embedding)
            hidden = self._hidden[slot] = self._forward(embedded, hidden, batch)
        logits = self.head.logits(hidden)
        every = logits.new_full((len(slot), len(self._embedding)), -torch.inf)
        return every.index_copy_(1, self._ids, logits)

    def drafted(self, slot: Tensor, known: Tensor, number: Tensor) -> None:
        self._follows[slot[number > 0]] = -1  # the hidden state is a draft's

    def _forward(self, embedded: Tensor, hidden: Tensor, batch: Batch) -> Tensor:
        assert self._attention is not None
        return self.head.forward(embedded, hidden, batch, self.kv, self._attention)


def show(following: Tensor, images: ImageEmbeddings, row_start: Tensor) -> None:
    """Use the image's embedding where the next position is of an image. Beyond the end of a row,
    it is not known yet."""
    within = ~torch.isin(images.at, row_start)
    following[images.at[within] - 1] = images.values[within]
