"""Images of Gemma 4 and Llama 4: sizes, tokens and pixels, compared with those of transformers."""

import ast
import math
from collections import defaultdict
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import transformers
from PIL import Image

from paceline.core.errors import ConfigError, RequestError
from paceline.images.fixed import CanvasProcessor
from paceline.images.processor import ProcessorFiles
from paceline.images.tiles import BudgetProcessor
from tests.golden.image_models import image_model
from tests.golden.image_sizes import IDS, random_image
from tests.images.support import encode, reader

SIZES = [(30, 30), (61, 20), (8, 190), (199, 200), (100, 33), (2, 9), (12, 20), (28, 56)]
TILE, MOST, LENGTH = 28, 4, 4  # pixels, tiles and embeddings of a tile


class Sides(NamedTuple):
    height: int
    width: int


@lru_cache
def theirs() -> dict[str, Any]:
    """The functions of transformers' module, which needs torchvision to be imported."""
    path = Path(transformers.__file__).parent / "models/llama4/image_processing_llama4.py"
    tree = ast.parse(path.read_text())
    tree.body = [one for one in tree.body if isinstance(one, ast.FunctionDef)]
    found: dict[str, Any] = {"math": math, "torch": torch, "SizeDict": object}
    found |= {"defaultdict": defaultdict, "lru_cache": lru_cache}
    exec(compile(tree, str(path), "exec"), found)
    return found


@pytest.mark.parametrize("fills", [False, True])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_canvases_of_llama_4(size: tuple[int, int], fills: bool) -> None:
    sides = Sides(TILE, TILE)
    grids = torch.tensor(theirs()["find_supported_resolutions"](MOST, sides))
    canvas = theirs()["get_best_fit"](size, grids, fills).tolist()
    limit = canvas
    if not fills:
        limit = [min(max(side, TILE), most) for side, most in zip(size, canvas, strict=True)]
    height, width = theirs()["get_max_res_without_distortion"](size, limit)
    rows, columns = canvas[0] // TILE, canvas[1] // TILE
    folder = image_model("Llama4").folder
    files = ProcessorFiles.read(folder, encode)
    files.settings["resize_to_max_canvas"] = fills  # pyright: ignore[reportIndexIssue]
    image = Image.fromarray(random_image(*size))
    found = CanvasProcessor(files).prepare(image)
    patches = "<|patch|>" * LENGTH
    row = "<|tile_x_separator|>".join([patches] * columns) + "<|tile_y_separator|>"
    tiles = row * rows if rows * columns > 1 else ""
    expected = f"<|image_start|>{tiles}<|image|>{patches}<|image_end|>"
    assert found.tokens == encode(expected)
    parts = [one.content["pixels"] for one in found.inputs if one.content is not None]
    assert len(parts) == rows * columns + (rows * columns > 1)
    whole = np.zeros((*canvas, 3), np.uint8)
    resized = image.resize((max(width, 1), max(height, 1)), Image.Resampling.BILINEAR)
    whole[: resized.height, : resized.width] = np.asarray(resized)
    for index in range(rows * columns):
        top, left = index // columns * TILE, index % columns * TILE
        assert np.array_equal(parts[index], whole[top : top + TILE, left : left + TILE])
    for one in found.inputs:
        ids = found.tokens[one.offset : one.end]
        assert ids == [IDS["<|patch|>"]] * LENGTH


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_budgets_of_gemma_4(size: tuple[int, int]) -> None:
    image = random_image(*size)
    (given,) = image_model("Gemma4").processor([image], return_tensors="np")["image_position_ids"]
    columns, rows = given.max(0) + 1  # of patches of 4 pixels
    found = reader("Gemma4").read(encode("a<image_soft_token>b"), [image])
    (shown,) = found.images
    assert shown.content is not None
    assert shown.content["pixels"].shape == (4 * rows, 4 * columns, 3)
    assert (shown.offset, shown.length) == (2, rows * columns // 4)
    soft = "<image_soft_token>" * shown.length
    assert list(found.token_ids) == encode(f"a<start_of_image>{soft}<end_of_image>b")


def test_what_does_not_fit_is_refused() -> None:
    gemma, llama = (
        ProcessorFiles.read(image_model(name).folder, encode) for name in ("Gemma4", "Llama4")
    )
    wrong = ProcessorFiles(gemma.config, gemma.vision, {**gemma.settings, "patch_size": 8}, encode)
    with pytest.raises(ConfigError, match="squares of 16 pixels, but the vision tower reads squ"):
        BudgetProcessor(wrong)
    fixed = ProcessorFiles(
        gemma.config, gemma.vision, {**gemma.settings, "do_resize": False}, encode
    )
    with pytest.raises(RequestError, match="30 x 20 pixels, which must be multiples of 8"):
        BudgetProcessor(fixed).prepare(Image.fromarray(random_image(20, 30)))
    sizes = {**llama.settings, "size": {"height": 30, "width": 30}}
    with pytest.raises(ConfigError, match="tiles of 30 x 30 pixels, but the vision tower reads"):
        CanvasProcessor(ProcessorFiles(llama.config, llama.vision, sizes, encode))
