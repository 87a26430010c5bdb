"""Coordinates of positions, for models in which a position has a time, a row and a column."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from paceline.core.arrays import I64
from paceline.core.request import Request
from paceline.runner.models.rope import AXES
from paceline.runner.vision.image_encoder import PIXELS


@dataclass(frozen=True, slots=True)
class ImagePlace:
    """An image in a prompt: its first position, and its embeddings in rows and columns."""

    offset: int
    rows: int
    columns: int


def prompt_coordinates(length: int, images: Sequence[ImagePlace]) -> I64:
    """The coordinates of each position of a prompt, [length, axes].

    A token has the same number in all of them, one more than the largest before it. Embeddings of
    an image have the number of a token at its place, plus their row and their column:

        token   a      b      image of 2 rows, 3 columns                         c
        time    0      1      2      2      2      2      2      2               5
        row     0      1      2      2      2      3      3      3               5
        column  0      1      2      3      4      2      3      4               5
    """
    found = np.repeat(np.arange(length)[:, None], AXES, axis=1)
    for image in images:
        size, place = image.rows * image.columns, np.arange(image.rows * image.columns)
        end = image.offset + size
        found[image.offset : end] = found[image.offset]
        found[image.offset : end, 1] += place // image.columns
        found[image.offset : end, 2] += place % image.columns
        found[end:] -= size - max(image.rows, image.columns)
    return found


def request_coordinates(request: Request, square: int) -> I64:
    """The same of a request with images, and of the first token behind its prompt. `square` is the
    number of pixels along each side of what becomes one embedding."""
    images: list[ImagePlace] = []
    for item in request.items:
        assert item.content is not None, "an image without a size"
        height, width, _ = item.content.shape(PIXELS)
        images.append(ImagePlace(item.offset, height // square, width // square))
    return prompt_coordinates(len(request.prompt) + 1, images)


class Coordinates:
    """The coordinates of positions in slots. Behind a prompt with images, each position is as far
    from its place as the last one of the prompt.
    """

    def __init__(self, slots: int, square: int, device: torch.device | str = "cpu") -> None:
        self._square = square
        self._prompts: dict[int, Tensor] = {}  # by slot, if it has images: [prompt, axes]
        self._shift = torch.zeros(slots, dtype=torch.int64, device=device)

    def admit(self, slot: int, request: Request) -> None:
        self.release(slot)
        if request.items:
            table = request_coordinates(request, self._square)
            self._prompts[slot] = torch.from_numpy(table).to(self._shift.device)
            self._shift[slot] = int(table[-1, 0]) - len(request.prompt)

    def release(self, slot: int) -> None:
        if self._prompts.pop(slot, None) is not None:
            self._shift[slot] = 0

    def of(self, slots: Tensor, position: Tensor, row_start: Tensor) -> Tensor | None:
        """The coordinates of the positions of a step, [positions, axes]; None if each is its place.
        Rows of the step have `slots`, and begin at `row_start`."""
        if not self._prompts:
            return None
        starts, owners = row_start.tolist(), slots.tolist()
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
