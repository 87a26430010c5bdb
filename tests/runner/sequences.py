"""Several sequences that one model computes, each as far as a step says."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from paceline.runner.attention_backend import load
from paceline.runner.batch import Batch
from paceline.runner.kv_store import KVStore
from paceline.runner.models.config import ModelConfig
from paceline.runner.models.layer_groups import LayerGroups, layer_groups
from paceline.runner.models.model import Model
from paceline.runner.models.states.state_layout import StateLayout
from paceline.runner.state_store import RowStates, StateStore
from tests.runner.support import Blocks, Piece, batch_of, with_states

BLOCKS = 96
SLOTS = 8
SPOILED = 0xFF  # each byte of a state that is not read; a number of such bytes is NaN


class LoadedModel(Protocol):
    """A model on some backend. Batches come from the CPU."""

    @property
    def config(self) -> ModelConfig: ...

    def store(self, blocks: int, block_size: int, groups: LayerGroups | None = None) -> KVStore: ...

    def forward(self, batch: Batch, kv: KVStore, wanted: Tensor | None = None) -> Tensor:
        """Hidden states of every position, or of the wanted ones."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """[n, vocab] in float32 on the CPU."""
        ...


class OnCPU:
    """A model in torch or C, with an attention by name."""

    def __init__(self, model: Model, attention: str) -> None:
        self.config, self._model, self._attention = model.config, model, load(attention)

    def store(self, blocks: int, block_size: int, groups: LayerGroups | None = None) -> KVStore:
        return KVStore(self.config, blocks, block_size, groups=groups)

    def forward(self, batch: Batch, kv: KVStore, wanted: Tensor | None = None) -> Tensor:
        return self._model.forward(with_states(batch, self.config), kv, self._attention, wanted)

    def logits(self, hidden: Tensor) -> Tensor:
        return self._model.logits(hidden)


class Sequences:
    """Tokens are known from the start, and computed step by step.

    Layers of other windows have other blocks. Blocks that a window has passed hold NaN from then
    on, and the tables still name them. Each sequence has a slot with its state, and slots that
    nobody has hold NaN.
    """

    def __init__(self, model: LoadedModel, block_size: int = 4) -> None:
        self.model, self.block_size = model, block_size
        self.groups = layer_groups(model.config.windows)
        blocks = BLOCKS * len(self.groups)
        self.kv = model.store(blocks, block_size, self.groups)
        self.free = Blocks(blocks, block_size)
        self.blocks: dict[str, list[list[int]]] = {}  # by group
        self.tokens: dict[str, list[int]] = {}
        self.computed: dict[str, int] = {}
        layout = StateLayout.of(model.config, 4)
        self.states = (
            None if layout is None else StateStore(layout, SLOTS, device=self.kv.content.device)
        )
        self.slots: dict[str, int] = {}
        self.free_slots = list(range(SLOTS))
        if self.states is not None:
            self.states.content.fill_(SPOILED)

    def add(self, name: str, tokens: Sequence[int]) -> None:
        self.tokens[name], self.computed[name] = list(tokens), 0
        self.blocks[name] = self._taken(len(tokens))
        self.slots[name] = self.free_slots.pop()

    def _taken(self, positions: int) -> list[list[int]]:
        return [self.free.take(positions) for _ in self.groups.windows]

    def step(self, **counts: int) -> dict[str, Tensor]:
        """Compute so many positions of each; the logits of all of them, by name."""
        pieces: list[Piece] = []
        for name, count in counts.items():
            first = self.computed[name]
            tokens = self.tokens[name][first : first + count]
            assert len(tokens) == count, f"{name} has no {count} tokens left"
            self._pass(name)
            pieces.append(Piece(tokens, first, self.blocks[name][0], self.blocks[name][1:]))
            self.computed[name] += count
        batch = batch_of(pieces, self.block_size)
        batch.check(self.block_size, self.kv.blocks)
        if self.states is not None:
            slots = torch.tensor([self.slots[name] for name in counts])
            batch = replace(batch, states=RowStates(self.states, slots))
        logits = self.model.logits(self.model.forward(batch, self.kv))
        return dict(zip(counts, logits.split([len(p.tokens) for p in pieces]), strict=True))

    def _pass(self, name: str) -> None:
        """Spoil the blocks that no position of the sequence reads from now on."""
        for window, blocks in zip(self.groups.windows, self.blocks[name], strict=True):
            passed = 0 if window is None else max(self.computed[name] - window + 1, 0)
            if old := blocks[: passed // self.block_size]:
                self.kv.write(old, self.kv.read(old).fill_(float("nan")))

    def preempt(self, name: str) -> None:
        """Lose everything that is computed; the sequence begins again in other blocks."""
        self._leave(name)
        self._move(name)
        self.computed[name] = 0

    def swap(self, name: str) -> None:
        """Move everything that is computed to other blocks, by way of the host."""
        content = [self.kv.read(blocks).cpu() for blocks in self.blocks[name]]
        self._leave(name)
        old, new = self._move(name)
        if self.states is not None:
            self.states.copy([(old, new)])
            self.states.content[old].fill_(SPOILED)
        for blocks, own in zip(self.blocks[name], content, strict=True):
            self.kv.write(blocks, own)

    def _move(self, name: str) -> tuple[int, int]:
        """Take another slot. Returns the old one and the new one."""
        old = self.slots[name]
        self.slots[name] = self.free_slots.pop(0)
        self.free_slots.append(old)
        return old, self.slots[name]

    def _leave(self, name: str) -> None:
        """Take other blocks. The old ones hold something else from now on."""
        for old in self.blocks[name]:
            self.kv.write(old, self.kv.read(old).fill_(9.0))
        self.blocks[name] = self._taken(len(self.tokens[name]))


def logits_of(model: LoadedModel, tokens: Sequence[int]) -> Tensor:
    """Of every position of a sequence that is computed alone and at once, [positions, vocab]."""
    alone = Sequences(model)
    alone.add("a", tokens)
    return alone.step(a=len(tokens))["a"]
