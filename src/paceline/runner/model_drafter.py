"""A drafter that is a model, whose KV uses the same block numbers as the main model's."""

from abc import abstractmethod

import torch
from torch import Tensor

from paceline.core.errors import ConfigError
from paceline.core.plan import Pairs, Plan
from paceline.core.settings.features import SpeculationConfig
from paceline.runner.kv_store import BlockMoves, KVStore
from paceline.runner.models.config import ModelConfig
from paceline.runner.proposer import Drafter, DraftingFor, DraftInput, Drafts
from paceline.runner.sampling.rejection import draw_drafts
from paceline.runner.sampling.token_choice import Greedy

VALUE_BYTES = 4  # of a KV value on a CPU


class ModelDrafter(Drafter):
    """A drafter on a CPU, whose store has a block for each block of the runner's store.

    Where the runner's store has the KV of a position, this store has its own: `observe` ensures it
    after every step. So copies, swaps and prefix hits apply to both.
    """

    observes = True

    def __init__(self, config: SpeculationConfig) -> None:
        super().__init__(config)
        self._kv: KVStore | None = None
        self._moves: BlockMoves | None = None
        self._runner: DraftingFor | None = None
        self._copies_after: Pairs = ()  # that the latest plan lists behind its rows

    @abstractmethod
    def store_config(self) -> ModelConfig:
        """The shape of its KV. ConfigError if the weights are not loaded yet."""

    @property
    def cell_bytes(self) -> int:
        shape = self.store_config()
        return shape.layers * shape.cell.values * VALUE_BYTES

    @property
    def runner(self) -> DraftingFor:
        assert self._runner is not None, "no runner is attached"
        return self._runner

    @property
    def kv(self) -> KVStore:
        assert self._kv is not None, "no runner is attached"
        return self._kv

    def attach(self, runner: DraftingFor) -> None:
        self._runner = runner
        self._kv = KVStore(self.store_config(), runner.blocks, runner.block_size)
        self._moves = BlockMoves(self._kv)

    def reserve_host(self, blocks: int) -> None:
        assert self._moves is not None, "no runner is attached"
        self._moves.reserve(blocks)

    def follow(self, plan: Plan) -> None:
        assert self._moves is not None, "no runner is attached"
        self.kv.copy(self._copies_after)  # those of the plan before
        self._copies_after = plan.states.block_copies
        self._moves.carry_out(plan)

    @torch.inference_mode()
    def draft(self, rows: DraftInput) -> Drafts:
        columns = self.runner.columns
        ids = torch.full((len(rows.slot), rows.most), -1)
        probabilities: Tensor | None = None
        number = torch.where(self.is_ready(rows), rows.number, 0)
        for offset in range(int(number.max())):
            alive = (number > offset).nonzero()[:, 0]
            slot, known = rows.slot[alive], rows.known[alive]
            latest = ids[alive, offset - 1] if offset else columns.tokens[slot, known - 1]
            logits = self.next_logits(offset, slot, known, latest)
            settings = columns.temperature[slot], columns.key[slot]
            ids[alive, offset], shares = choose_drafts(logits, *settings, known + offset)
            if shares is not None:
                if probabilities is None:
                    probabilities = torch.zeros(*ids.shape, shares.shape[1])
                probabilities[alive, offset] = shares
        self.drafted(rows.slot, rows.known, number)
        return Drafts(ids, probabilities)

    def is_ready(self, rows: DraftInput) -> Tensor:
        """Can it draft for each row? [rows]"""
        return rows.number > 0

    @abstractmethod
    def next_logits(self, offset: int, slot: Tensor, known: Tensor, latest: Tensor) -> Tensor:
        """Logits [rows, vocab] of the draft after `known + offset` tokens of each row, the last of
        which is `latest` [rows]."""

    def drafted(self, slot: Tensor, known: Tensor, number: Tensor) -> None:
        """Called after `number` drafts of each row were made."""


def choose_drafts(
    logits: Tensor, temperature: Tensor, key: Tensor, position: Tensor
) -> tuple[Tensor, Tensor | None]:
    """Return drafts [rows], and the probabilities [rows, vocab] with which they were drawn; None if
    all rows take the likeliest token."""
    if bool((temperature > 0).any()):
        return draw_drafts(logits, temperature, key, position)
    return Greedy(slice(None)).choose(logits, position)[0], None


def check_vocab(drafts: ModelConfig, model: ModelConfig) -> None:
    """ConfigError unless a draft model has the vocabulary of the model."""
    if drafts.vocab != model.vocab:
        raise ConfigError(
            f"the draft model has a vocabulary of {drafts.vocab} tokens and the model one of "
            f"{model.vocab}: use a draft model with the same tokenizer"
        )
