"""Logits of prompts with images, in one piece and in chunks, and those of transformers."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from paceline.runner.attention_backend import load
from paceline.runner.batch import ImageEmbeddings, ImageGrid, prompt_coordinates
from paceline.runner.kv_store import KVStore
from tests.golden.image_models import ImageModel, close, image_model
from tests.golden.image_sizes import IDS, Pixels, random_image
from tests.runner.support import Piece, batch_of

BLOCK = 8
TILE, SQUARE = 30, 8  # pixels of a tile of SigLIP, and of what becomes one embedding of Qwen


@dataclass(frozen=True)
class Prompt:
    """Tokens, and images in place of some of them."""

    tokens: list[int]
    images: list[Pixels]
    grids: list[ImageGrid]


def prompt_with(mark: int, images: Sequence[Pixels], square: int) -> Prompt:
    """Text before, between and behind the images."""
    tokens, grids = [7, 30, 2], list[ImageGrid]()
    for number, image in enumerate(images):
        rows, columns = image.shape[0] // square, image.shape[1] // square
        grids.append(ImageGrid(len(tokens), rows, columns))
        tokens += [mark] * (rows * columns) + [40 + number, 9]
    return Prompt(tokens, list(images), grids)


def computed(model: ImageModel, prompt: Prompt, chunks: Sequence[int]) -> Tensor:
    """Our logits of all positions."""
    ours, attention = model.ours(), load("native")
    assert ours.images is not None
    values = torch.cat(ours.images.tower([torch.from_numpy(one) for one in prompt.images]))
    is_image = torch.zeros(len(prompt.tokens), dtype=torch.bool)
    for grid in prompt.grids:
        is_image[grid.offset : grid.offset + grid.rows * grid.columns] = True
    table = torch.zeros(len(is_image), values.shape[1])
    table[is_image] = values
    coordinates = torch.from_numpy(prompt_coordinates(len(is_image), prompt.grids))
    kv, first, found = KVStore(ours.config, 16, BLOCK), 0, list[Tensor]()
    for count in chunks:
        some = slice(first, first + count)
        batch = batch_of([Piece(prompt.tokens[some], first, range(16))], BLOCK)
        at = is_image[some].nonzero()[:, 0]
        images = ImageEmbeddings(at, table[some][at])
        batch = replace(batch, images=images, coordinates=coordinates[some])
        found.append(ours.logits(ours.forward(batch, kv, attention)))
        first += count
    return torch.cat(found)


def check_chunks(model: ImageModel, prompt: Prompt, theirs: dict[str, Any]) -> None:
    given = torch.tensor([prompt.tokens])
    expected = model.theirs(input_ids=given, **theirs).logits[0]
    whole = len(prompt.tokens)
    for chunks in ([whole], [5, 1, 6, whole - 12]):
        close(computed(model, prompt, chunks), expected)


@pytest.mark.parametrize("name", ["Idefics3", "SmolVLM"])
def test_tiles(name: str) -> None:
    tiles = [random_image(TILE, TILE, seed) for seed in range(3)]
    prompt = prompt_with(IDS["<image>"], tiles, square=TILE // 2)
    scaled = torch.stack([torch.from_numpy(tile) for tile in tiles]).permute(0, 3, 1, 2) / 255
    check_chunks(image_model(name), prompt, {"pixel_values": (scaled[None] - 0.5) / 0.5})


def test_images_of_several_sizes() -> None:
    model = image_model("Qwen2_5_VL")
    sizes = [(24, 40), (16, 16), (40, 24)]
    images = [random_image(*size, seed) for seed, size in enumerate(sizes)]
    prompt = prompt_with(IDS["<|image_pad|>"], images, SQUARE)
    kinds = torch.tensor([[token == IDS["<|image_pad|>"] for token in prompt.tokens]])
    given = dict(model.processor(images, return_tensors="pt"), mm_token_type_ids=kinds.int())
    check_chunks(model, prompt, given)
