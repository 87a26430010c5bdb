"""Embeddings of images on the device: encoded once, read by the rows of any step."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from paceline.core.errors import StepError
from paceline.core.multimodal import Embedded, Encoding, ImageContent
from paceline.core.plan import Plan
from paceline.core.request import Request
from paceline.runner.batch import Batch, Coordinates, ImageEmbeddings


class MultimodalEncoder(Protocol):
    """The part of a model that encodes images as embeddings."""

    @property
    def width(self) -> int:
        """Numbers in an embedding, as many as in that of a token."""
        ...

    @property
    def encodes(self) -> bool:
        """Whether this rank encodes: rank 0 does so for all."""
        ...

    def encode(self, images: Sequence[ImageContent]) -> Sequence[Tensor]:
        """The embeddings of each image, [positions, width], in the dtype and on the device of the
        model."""
        ...


class EncoderStore:
    """A table of embeddings. The scheduler says which of its rows an image is written to, and from
    which rows the positions of a step read. Where another rank encodes, it is left empty."""

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
            self.content[self._index(one.rows)] = found.to(self.content)

    def read(self, embedded: Embedded, row_start: Tensor) -> ImageEmbeddings | None:
        """The embeddings that positions of a step have; None if there are none. The rows of the
        step begin at `row_start`."""
        if not len(embedded):
            return None
        at = row_start[self._index(embedded.row)] + self._index(embedded.place)
        return ImageEmbeddings(at, self.content[self._index(embedded.source)])

    def _index(self, numbers: object) -> Tensor:
        return torch.as_tensor(numbers, dtype=torch.int64, device=self.content.device)


class ResidentImages:
    """Follows plans. Positions of images have embeddings from the store, and in some models the
    positions of sequences with images have coordinates of their own."""

    def __init__(self, store: EncoderStore, coordinates: Coordinates | None = None) -> None:
        self._store, self._coordinates = store, coordinates
        self._requests: dict[int, Request] = {}  # with images, by slot

    def apply(self, plan: Plan) -> None:
        """Follow the changes of a plan."""
        for slot in plan.released:
            if self._requests.pop(slot, None) is not None and self._coordinates is not None:
                self._coordinates.release(slot)
        for new in plan.admitted:
            if new.request.images:
                self._requests[new.slot] = new.request
                if self._coordinates is not None:
                    self._coordinates.admit(new.slot, new.request)

    def encode(self, plan: Plan) -> None:
        """Encode what a plan lists."""
        if plan.encode:
            self._store.encode(plan.encode, self._requests)

    def merged(self, batch: Batch, plan: Plan, slot: Tensor) -> Batch:
        """The batch of a step, with the embeddings of its images. Its rows have `slot`."""
        if not self._requests:
            return batch
        images = self._store.read(plan.embedded, batch.row_start)
        coordinates = None
        if self._coordinates is not None:
            coordinates = self._coordinates.of(slot, batch.position, batch.row_start)
        return replace(batch, images=images, coordinates=coordinates)
