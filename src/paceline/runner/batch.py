"""The tensors of one step, over rows of any length."""

from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from paceline.core.arrays import I64
from paceline.core.request import Request
from paceline.runner.models.rope import AXES
from paceline.runner.state_store import RowStates
from paceline.runner.tensors import from_numpy, to_ints
from paceline.runner.vision.image_encoder import PIXELS


@dataclass(frozen=True, slots=True)
class ImageGrid:
    """An image in a prompt: its first position, and its rows and columns of embeddings."""

    offset: int
    rows: int
    columns: int


def prompt_coordinates(length: int, images: Sequence[ImageGrid]) -> I64:
    """The coordinates of each position of a prompt, [length, axes].

    All coordinates of a token are equal, one more than the largest before it. An embedding of an
    image has the coordinates of a token at the image's position, plus its row and column:

        token   a      b      image of 2 rows, 3 columns                         c
        time    0      1      2      2      2      2      2      2               5
        row     0      1      2      2      2      3      3      3               5
        column  0      1      2      3      4      2      3      4               5
    """
    found = np.repeat(np.arange(length)[:, None], AXES, axis=1)
    for image in images:
        size, index = image.rows * image.columns, np.arange(image.rows * image.columns)
        end = image.offset + size
        found[image.offset : end] = found[image.offset]
        found[image.offset : end, 1] += index // image.columns
        found[image.offset : end, 2] += index % image.columns
        found[end:] -= size - max(image.rows, image.columns)
    return found


def request_coordinates(request: Request, square: int) -> I64:
    """The coordinates of a request with images, and of the first token after its prompt. One
    embedding covers `square` by `square` pixels."""
    images: list[ImageGrid] = []
    for image in request.images:
        assert image.content is not None, "an image without a size"
        height, width, _ = image.content.shape(PIXELS)
        images.append(ImageGrid(image.offset, height // square, width // square))
    return prompt_coordinates(len(request.prompt) + 1, images)


class Coordinates:
    """The coordinates of positions in slots. After a prompt with images, the coordinates of a
    position are its index plus a constant."""

    def __init__(self, slots: int, square: int, device: torch.device | str = "cpu") -> None:
        self._square = square
        self._prompts: dict[int, Tensor] = {}  # by slot, if it has images: [prompt, axes]
        self._shift = torch.zeros(slots, dtype=torch.int64, device=device)

    def admit(self, slot: int, request: Request) -> None:
        self.release(slot)
        if request.images:
            table = request_coordinates(request, self._square)
            self._prompts[slot] = from_numpy(table).to(self._shift.device)
            self._shift[slot] = int(table[-1, 0]) - len(request.prompt)

    def release(self, slot: int) -> None:
        if self._prompts.pop(slot, None) is not None:
            self._shift[slot] = 0

    def of(self, slots: Tensor, position: Tensor, row_start: Tensor) -> Tensor | None:
        """The coordinates of a step's positions, [positions, axes]; None if they equal the index.
        Rows of the step have `slots`, and begin at `row_start`."""
        if not self._prompts:
            return None
        starts, owners = to_ints(row_start), to_ints(slots)
        count = row_start[1:] - row_start[:-1]
        shifted = position + self._shift[slots].repeat_interleave(count)
        found = shifted[:, None].repeat(1, AXES)
        for row, slot in enumerate(owners):
            table = self._prompts.get(slot)
            first = int(position[starts[row]])
            if table is None or first >= len(table):
                continue
            known = table[first : first + starts[row + 1] - starts[row]]
            found[starts[row] : starts[row] + len(known)] = known
        return found


@dataclass(frozen=True, slots=True, eq=False)
class ImageEmbeddings:
    """Embeddings of images, which replace those of tokens. Some towers have further ones, which are
    added to the inputs of the layers after the first.

    values   | instead of the token | for layer 1 | for layer 2 |     of `width` each
    """

    at: Tensor  # [n]; indices of positions in the batch
    values: Tensor  # [n, levels * width]

    def put_into(self, hidden: Tensor) -> None:
        """Replace the embeddings of tokens in `hidden` [positions, width]."""
        hidden[self.at] = self.values[:, : hidden.shape[1]]

    def add_before(self, layer: int, hidden: Tensor) -> None:
        """Add what there is for the input of this layer, which is not the first."""
        width = hidden.shape[1]
        if 0 < layer < self.values.shape[1] // width:
            hidden[self.at] += self.values[:, layer * width : (layer + 1) * width]


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """The positions that a step computes, row by row.

        row_start   0           3   4           7        three rows: a chunk, a decode, a chunk
        position    5   6   7 | 9 | 0   1   2 |
        context             8  10           3            a row reads its own and all before

    In layers of group g, position i of a row's sequence is in block
    `block_table[g, row, i // block_size]`. Entries after the context may be any valid block. So may
    entries before the window of the group: their blocks belong to other sequences, and may contain
    NaN.
    """

    tokens: Tensor  # [positions]
    position: Tensor  # [positions]; in its sequence
    row_start: Tensor  # [rows + 1]
    context: Tensor  # [rows]; positions that each row reads, including its own
    block_table: Tensor  # [groups, rows, blocks]
    write_cell: Tensor  # [groups, positions]; block * block_size + offset
    sample_at: Tensor  # [samples]; indices of positions whose logits are needed
    images: ImageEmbeddings | None = None  # None: every position has the embedding of its token
    adapters: Tensor | None = None  # [positions]; index of its adapter, or -1: none
    coordinates: Tensor | None = None  # [positions, axes]; None: `position` is the only one
    states: RowStates | None = None  # None: the model has no states
    ends: Tensor | None = None  # [positions]; see `read_to`; None: attention is causal
    ends_in_windows: bool = False  # in layers without a window, attention is causal all the same

    @property
    def positions(self) -> int:
        return len(self.tokens)

    @property
    def rows(self) -> int:
        return len(self.context)

    def ends_for(self, window: int | None) -> Tensor | None:
        """`ends` in layers with this window; None: attention is causal there."""
        return None if window is None and self.ends_in_windows else self.ends

    def read_to(self, window: int | None) -> Tensor:
        """Behind the last position that each position reads, [positions]: itself, or the last one
        of its image."""
        ends = self.ends_for(window)
        return self.position + 1 if ends is None else ends

    def check(self, block_size: int, blocks: int) -> None:
        """Verify every invariant. Slow: for tests."""
        always = [one.name for one in fields(self) if one.default is MISSING]
        kinds = {getattr(self, name).dtype for name in always}
        assert kinds <= {torch.int32, torch.int64}, f"{kinds} are not integer types"
        starts, contexts = to_ints(self.row_start), to_ints(self.context)
        assert starts[0] == 0, f"the first row starts at {starts[0]}"
        groups, positions = self.write_cell.shape
        assert starts[-1] == len(self.tokens) == len(self.position) == positions
        assert self.block_table.shape[:2] == (groups, len(contexts))
        assert len(starts) == len(contexts) + 1
        for row, context in enumerate(contexts):
            first, end = starts[row], starts[row + 1]
            assert first < end, f"row {row} is empty"
            expected = list(range(context - (end - first), context))
            assert expected[0] >= 0, f"row {row} has more positions than context"
            assert to_ints(self.position[first:end]) == expected, f"row {row} has a gap"
            at = torch.tensor(expected)
            owned = self.block_table[:, row, at // block_size]
            cells = owned * block_size + at % block_size
            assert torch.equal(self.write_cell[:, first:end], cells), (
                f"row {row} writes to cells outside of its blocks"
            )
        assert ((self.block_table >= 0) & (self.block_table < blocks)).all(), (
            f"a block id is not below {blocks}"
        )
        written = to_ints(self.write_cell.flatten())
        assert len(set(written)) == len(written), "a cell is written twice"
        assert ((self.sample_at >= 0) & (self.sample_at < len(self.tokens))).all()


class Tables(Protocol):
    """Tokens and block tables by slot."""

    tokens: Tensor  # [slots, tokens]
    table: Tensor  # [groups, slots, blocks]


def batch_of_slots(
    columns: Tables, block_size: int, slot: Tensor, start: Tensor, count: Tensor
) -> Batch:
    """The batch of rows that compute `count` positions of slots from `start` on, all [rows], and
    the logits of each row's last position."""
    row_start = torch.cat([count.new_zeros(1), count.cumsum(0)])
    row = torch.repeat_interleave(torch.arange(len(slot), device=slot.device), count)
    position = start[row] + torch.arange(len(row), device=slot.device) - row_start[row]
    owner, context = slot[row], start + count
    block = columns.table[:, owner, position // block_size]  # [groups, positions]
    return Batch(
        tokens=columns.tokens[owner, position],
        position=position,
        row_start=row_start,
        context=context,
        block_table=columns.table[:, slot, : -(-int(context.max()) // block_size)],
        write_cell=block * block_size + position % block_size,
        sample_at=row_start[1:] - 1,
    )
