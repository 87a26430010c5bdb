"""The store of image embeddings on the device."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from paceline.core.arrays import I32, NO_I32
from paceline.core.errors import StepError
from paceline.core.multimodal import Embedded, Encoding, ImageContent
from paceline.core.plan import Plan
from paceline.core.request import Request
from paceline.runner.batch import Batch, Coordinates, ImageEmbeddings
from paceline.runner.tensors import from_numpy
from paceline.runner.vision.spec import ReadsItself


class MultimodalEncoder(Protocol):
    """The part of a model that encodes images."""

    @property
    def width(self) -> int:
        """Width of an embedding, the same as that of tokens."""
        ...

    @property
    def encodes(self) -> bool:
        """Does this rank encode? Rank 0 encodes for all ranks."""
        ...

    def encode(self, images: Sequence[ImageContent]) -> Sequence[Tensor]:
        """The embeddings of each image, [positions, width], in the dtype and on the device of the
        model."""
        ...


class EncoderStore:
    """A table of embeddings. The scheduler says to which rows an image is written, and which rows
    the positions of a step read. It stays empty if another rank encodes."""

    def __init__(self, encoder: MultimodalEncoder, content: Tensor) -> None:
        self._encoder = encoder
        self.content = content  # [rows, width]

    @torch.inference_mode()
    def encode(self, encodings: Sequence[Encoding], requests: Mapping[int, Request]) -> None:
        """Encode the images of a step; `requests` are those in the slots."""
        if not self._encoder.encodes:
            return
        images = [requests[one.slot].images[one.image] for one in encodings]
        given: list[ImageContent] = []
        for image in images:
            if image.content is None:
                raise StepError(f"image {image.identity!r} came without the content to encode")
            given.append(image.content)
        for one, found in zip(encodings, self._encoder.encode(given), strict=True):
            if found.shape != (len(one.rows), self._encoder.width):
                raise StepError(
                    f"the encoder returned {tuple(found.shape)} values for image {one.identity!r}; "
                    f"({len(one.rows)}, {self._encoder.width}) are expected"
                )
            self.write(self._index(one.rows), found)

    def write(self, rows: Tensor, embeddings: Tensor) -> None:
        """Write embeddings [n, width of the encoder] to these rows."""
        self.content[rows] = embeddings.to(self.content)

    def read(self, embedded: Embedded, row_start: Tensor) -> ImageEmbeddings | None:
        """The embeddings that positions of a step read; None if there are none. Rows begin at
        `row_start`."""
        if not len(embedded):
            return None
        at = row_start[self._index(embedded.row)] + self._index(embedded.offset)
        return ImageEmbeddings(at, self.content[self._index(embedded.source)])

    def _index(self, numbers: object) -> Tensor:
        return torch.as_tensor(numbers, dtype=torch.int64, device=self.content.device)


@dataclass(frozen=True, slots=True)
class ReadEnds:
    """Positions of a batch that read up to the end of their image: index and end of each."""

    at: I32
    end: I32

    @staticmethod
    def of(plan: Plan, requests: Mapping[int, Request]) -> "ReadEnds":
        """`requests` are those in the slots."""
        at, end = [NO_I32], [NO_I32]
        begins = np.cumsum(plan.rows.count) - plan.rows.count
        for row in np.unique(plan.embedded.row).tolist():
            first, count = int(plan.start[row]), int(plan.rows.count[row])
            for image in requests[int(plan.rows.slot[row])].images:
                begin = max(image.offset, first)
                if begin < min(image.end, first + count):
                    assert image.end <= first + count, "such an image is computed in one step"
                    index = np.arange(begin - first, image.end - first, dtype=np.int32)
                    at.append(index + np.int32(begins[row]))
                    end.append(np.full(len(index), image.end, np.int32))
        return ReadEnds(np.concatenate(at), np.concatenate(end))

    def of_all(self, position: Tensor, send: Callable[[I32], Tensor]) -> Tensor:
        """Behind the last position that each position of the batch reads, [positions]."""
        return (position + 1).index_copy_(0, send(self.at).long(), send(self.end).to(position))


class ResidentImages:
    """The images of resident requests: their embeddings in the store, and, in some models, the
    coordinates of their positions, or which positions these read."""

    def __init__(
        self,
        store: EncoderStore,
        coordinates: Coordinates | None = None,
        reads_itself: ReadsItself = "never",
    ) -> None:
        """`reads_itself`: where all positions of an image read each other."""
        self._store, self._coordinates = store, coordinates
        self._reads_itself = reads_itself
        self._requests: dict[int, Request] = {}  # with images, by slot

    def apply(self, plan: Plan) -> None:
        """Apply the changes of a plan."""
        for slot in plan.released:
            if self._requests.pop(slot, None) is not None and self._coordinates is not None:
                self._coordinates.release(slot)
        for new in plan.admitted:
            if new.request.images:
                self._requests[new.slot] = new.request
                if self._coordinates is not None:
                    self._coordinates.admit(new.slot, new.request)

    def encode(self, plan: Plan) -> None:
        """Encode the images of a plan."""
        if plan.encode:
            self._store.encode(plan.encode, self._requests)

    def merged(self, batch: Batch, plan: Plan, slot: Tensor) -> Batch:
        """Add the embeddings of images to the batch of a step, whose rows have `slot`."""
        if not self._requests:
            return batch
        images = self._store.read(plan.embedded, batch.row_start)
        coordinates = None
        if self._coordinates is not None:
            coordinates = self._coordinates.of(slot, batch.position, batch.row_start)
        batch = replace(batch, images=images, coordinates=coordinates)
        if self._reads_itself == "never" or images is None:
            return batch
        ends = ReadEnds.of(plan, self._requests).of_all(batch.position, from_numpy)
        return replace(batch, ends=ends, ends_in_windows=self._reads_itself == "windowed")
