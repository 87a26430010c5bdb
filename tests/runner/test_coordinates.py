import numpy as np
import torch

from paceline.core.multimodal import ImageContent, ImageInput
from paceline.core.request import Request
from paceline.runner.batch import Coordinates, ImageGrid, prompt_coordinates


def test_images_have_rows_and_columns_and_text_continues_behind_the_longer_side() -> None:
    found = prompt_coordinates(9, [ImageGrid(2, rows=2, columns=3)])
    assert found[:, 0].tolist() == [0, 1, 2, 2, 2, 2, 2, 2, 5]
    assert found[:, 1].tolist() == [0, 1, 2, 2, 2, 3, 3, 3, 5]
    assert found[:, 2].tolist() == [0, 1, 2, 3, 4, 2, 3, 4, 5]


def request_with_image() -> Request:
    """Two rows and three columns of eight pixels, in the middle of nine tokens."""
    content = ImageContent.of("image", {"pixels": np.zeros((16, 24, 3), np.uint8)})
    image = ImageInput("an image", 2, 6, content)
    return Request(id="a", prompt=[1] * 9, max_tokens=4, images=(image,))


def test_rows_of_a_step_begin_anywhere_in_a_prompt_and_behind_it() -> None:
    coordinates = Coordinates(slots=4, square=8)
    slots = torch.tensor([3, 1])
    position, row_start = torch.tensor([7, 8, 9, 10, 20, 21]), torch.tensor([0, 4, 6])
    assert coordinates.of(slots, position, row_start) is None
    coordinates.admit(3, request_with_image())
    found = coordinates.of(slots, position, row_start)
    assert found is not None
    assert found[0].tolist() == [2, 3, 4]
    assert found[1:].tolist() == [[at] * 3 for at in (5, 6, 7, 20, 21)]
    coordinates.admit(3, Request(id="b", prompt=[1], max_tokens=4))
    assert coordinates.of(slots, position, row_start) is None
