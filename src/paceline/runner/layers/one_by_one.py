"""Compute a step one position at a time: then the result of a position depends on no other row."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor

from paceline.runner.adapters.host import NO_ADAPTER
from paceline.runner.batch import Batch, ImageEmbeddings
from paceline.runner.layers.norm import LayerInputs
from paceline.runner.state_store import RowStates
from paceline.runner.tensors import to_ints

# Hidden states of the wanted positions of a batch, in their order, or of all.
Forward = Callable[[Batch, Tensor | None, LayerInputs | None], Tensor]


def one_by_one(
    forward: Forward,
    batch: Batch,
    block_size: int,
    wanted: Tensor | None,
    inputs: LayerInputs | None,
) -> Tensor:
    """The same as `forward` of the whole batch, in calls for one position each. Every call has the
    same shapes, apart from the position's own context, so it takes the same kernels."""
    assert batch.ends is None, "positions that read later ones"
    order = list(range(batch.positions)) if wanted is None else to_ints(wanted)
    first, none = torch.zeros(1, dtype=torch.long), torch.zeros(0, dtype=torch.long)
    needed = set(order)
    found: list[Tensor] = []  # [1, width] each, or [0, width]
    for at, one in enumerate(positions_of(batch, block_size)):
        kept = None if inputs is None else LayerInputs(inputs.layers, inputs.rows[at : at + 1])
        found.append(forward(one, first if at in needed else none, kept))
    return torch.cat([found[at] for at in order]) if order else found[-1]


def positions_of(batch: Batch, block_size: int) -> Iterator[Batch]:
    """A batch of one row and one position for each position, in their order."""
    starts, position = to_ints(batch.row_start), to_ints(batch.position)
    for row, (begin, end) in enumerate(pairwise(starts)):
        for at in range(begin, end):
            here, context = slice(at, at + 1), position[at] + 1
            yield replace(
                batch,
                tokens=batch.tokens[here],
                position=batch.position[here],
                row_start=batch.row_start.new_tensor([0, 1]),
                context=batch.context.new_tensor([context]),
                block_table=batch.block_table[:, row : row + 1, : -(-context // block_size)],
                write_cell=batch.write_cell[:, here],
                sample_at=batch.sample_at.new_zeros(1),
                images=image_of(batch.images, at),
                adapters=adapter_of(batch.adapters, here),
                coordinates=None if batch.coordinates is None else batch.coordinates[here],
                states=state_of(batch, row),
            )


def image_of(images: ImageEmbeddings | None, at: int) -> ImageEmbeddings | None:
    """The embedding of an image at this position, if it has one."""
    if images is None or not len(values := images.values[images.at == at]):
        return None
    return ImageEmbeddings(images.at.new_zeros(1), values)


def adapter_of(adapters: Tensor | None, here: slice) -> Tensor | None:
    """The adapter of one position, as a step has it in which no other position has one."""
    if adapters is None or int(adapters[here]) == NO_ADAPTER:
        return None
    return adapters[here]


def state_of(batch: Batch, row: int) -> RowStates | None:
    states = batch.states
    return None if states is None else RowStates(states.store, states.slot[row : row + 1])
