"""Small models, and batches built row by row."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import torch
from torch import Tensor

from paceline.core.settings.config import CacheConfig
from paceline.core.settings.features import FULL_ATTENTION
from paceline.runner.batch import Batch
from paceline.runner.kv_store import KVStore
from paceline.runner.models.config import ModelConfig
from paceline.runner.models.layer_groups import LayerGroups, layer_groups, one_group
from paceline.runner.models.states.state_layout import StateLayout
from paceline.runner.state_store import RowStates, StateStore

TINY: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 40,
    "vocab_size": 61,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def tiny(**changes: Any) -> ModelConfig:
    return ModelConfig.of_hf({**TINY, **changes})


def stepped(weight: Tensor) -> Tensor:
    """Weights that 4 bits hold: in each group of 32 inputs, sixteen steps from the least one."""
    parts = []
    for group in weight.split(32, dim=1):
        low, high = group.aminmax(dim=1, keepdim=True)
        low, step = low.half().float(), ((high - low) / 15).half().float()
        parts.append(low + step * ((group - low) / step.clamp(min=1e-9)).round().clamp(0, 15))
    return torch.cat(parts, dim=1)


@dataclass(frozen=True)
class Piece:
    """What one row computes: tokens from a position on, of a sequence in blocks."""

    tokens: Sequence[int]
    start: int
    blocks: Sequence[int]  # of group 0
    more: Sequence[Sequence[int]] = ()  # of the groups from 1 on


def batch_of(pieces: Sequence[Piece], block_size: int) -> Batch:
    """The batch of some rows, with the logits of each row's last position wanted."""
    position, starts = [], [0]
    tables = [[piece.blocks, *piece.more] for piece in pieces]
    cells = [list[int]() for _ in tables[0]]
    for piece, groups in zip(pieces, tables, strict=True):
        places = range(piece.start, piece.start + len(piece.tokens))
        position += places
        for own, blocks in zip(cells, groups, strict=True):
            own += [blocks[p // block_size] * block_size + p % block_size for p in places]
        starts.append(starts[-1] + len(piece.tokens))
    width = max(len(piece.blocks) for piece in pieces)
    table = [
        [[*groups[group], *[0] * (width - len(groups[group]))] for groups in tables]
        for group in range(len(cells))
    ]
    return Batch(
        tokens=torch.tensor([token for piece in pieces for token in piece.tokens]),
        position=torch.tensor(position),
        row_start=torch.tensor(starts),
        context=torch.tensor([piece.start + len(piece.tokens) for piece in pieces]),
        block_table=torch.tensor(table),
        write_cell=torch.tensor(cells),
        sample_at=torch.tensor(starts[1:]) - 1,
    )


def with_states(batch: Batch, config: ModelConfig, device: str = "cpu") -> Batch:
    """A batch whose rows have states, if layers of the model keep some and the batch has none.
    They are forgotten after the step."""
    layout = StateLayout.of(config, 4)
    if layout is None or batch.states is not None:
        return batch
    store = StateStore(layout, batch.rows, device=device)
    return replace(batch, states=RowStates(store, torch.arange(batch.rows)))


@dataclass
class Blocks:
    """Hands out blocks in no order, so that no two neighbours of a sequence are neighbours."""

    blocks: int
    block_size: int
    seed: int = 0
    free: list[int] = field(default_factory=list[int])

    def __post_init__(self) -> None:
        self.free = list(range(self.blocks))
        Random(self.seed).shuffle(self.free)

    def take(self, positions: int) -> list[int]:
        return [self.free.pop() for _ in range(-(-positions // self.block_size))]


Rows = list[tuple[int, int]]  # positions and contexts, those of one position first


def rows_of(counts: Rows, block_size: int, device: str = "cpu") -> tuple[Batch, int]:
    """A batch of such rows as a GPU has it, and the blocks that it needs."""
    total = sum(-(-context // block_size) for _, context in counts) + 3
    blocks = Blocks(total, block_size)
    pieces = [
        Piece([0] * count, context - count, blocks.take(context)) for count, context in counts
    ]
    batch = batch_of(pieces, block_size)
    columns = {
        name: one.to(device, torch.int32)
        for name in Batch.__slots__
        if isinstance(one := getattr(batch, name), Tensor)
    }
    return replace(batch, **columns), total


def bounds_of(counts: Rows, device: str = "cpu") -> Tensor:
    """Up to where rows have one position, and up to where there are rows."""
    singles = sum(count == 1 for count, _ in counts)
    return torch.tensor([singles, len(counts)], dtype=torch.int32, device=device)


def cells_of(batch: Batch, kv: KVStore) -> Tensor:
    """Where in the first layer of the store each position goes, as kernels for a GPU count."""
    at = batch.write_cell.long()
    return at // kv.block_size * kv.content.stride(0) + at % kv.block_size * kv.content.stride(2)


def groups_for(model: ModelConfig, cache: CacheConfig) -> LayerGroups:
    """The groups of layers that a scheduler with such a cache plans for."""
    if cache.attention_groups == FULL_ATTENTION:
        return one_group(model.windows)
    return layer_groups(model.windows)


def filled_store(config: ModelConfig, blocks: int, block_size: int, **how: Any) -> KVStore:
    """One in which every cell has something, the same every time."""
    kv = KVStore(config, blocks, block_size, **how)
    random = torch.Generator(kv.content.device).manual_seed(1)
    kv.content.normal_(generator=random)
    return kv


def spoil_passed(batch: Batch, kv: KVStore, counts: Rows, window: int | None) -> None:
    """Fill blocks that the window of each row has passed with NaN, as other sequences may."""
    for row, (count, context) in enumerate(counts):
        passed = 0 if window is None else max(context - count - window + 1, 0) // kv.block_size
        kv.content[batch.block_table[0, row, :passed].long()] = float("nan")
