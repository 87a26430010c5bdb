"""Rows share the budget and the cache of the encoder in order."""

import numpy as np

from paceline.core.multimodal import ImageInput
from paceline.core.request import Request, Sequence
from paceline.sched.admission.images_ahead import ENCODED_EMBEDDINGS, HELD_EMBEDDINGS
from paceline.sched.admission.limits import EncoderBudget, ReachableImages
from paceline.sched.admission.rows import ArrivalRow, ResidentRows, Used
from tests.sched.admission.limit_support import View, config, residents, row


def pictured(*images: ImageInput) -> Sequence:
    request = Request("p", [1] * 32, images=images)  # pyright: ignore[reportArgumentType]
    return Sequence(request, 9, 64, 0.0, request.prompt)


def limits(view: View) -> tuple[ReachableImages, EncoderBudget]:
    settings = config(max_num_seqs=4)
    return ReachableImages.create(settings, view), EncoderBudget.create(settings, view)


def resident_rows(view: View, *sequences: Sequence) -> ResidentRows:
    slots = [view.table.admit(one, 0, drafts=0) for one in sequences]
    for one in sequences:
        view.images.join(one, 0)
    return ResidentRows(view.table, np.array(slots, np.intp), row(*(20 for _ in slots)), 1_000)


def test_residents_are_served_in_order_and_an_image_that_two_need_counts_once() -> None:
    view = View(max_num_encoder_input_tokens=6)
    cat, dog = (ImageInput(name, 4, 5) for name in ("cat", "dog"))
    rows = resident_rows(view, pictured(cat), pictured(dog), pictured(cat))
    alone, together = limits(view)
    assert alone.clip(rows).tolist() == [20, 20, 20]
    assert together.clip(rows).tolist() == [20, 4, 20]
    used: Used = {}
    rows.want = together.clip(rows)
    together.spend(rows, used)
    assert (used[ENCODED_EMBEDDINGS], used[HELD_EMBEDDINGS]) == (5, 5)


def test_an_arrival_gets_what_the_rows_before_it_leave() -> None:
    view = View(max_num_encoder_input_tokens=8)
    _, together = limits(view)
    for spent, reached in ((2, 32), (4, 3)):
        used = {ENCODED_EMBEDDINGS: spent, HELD_EMBEDDINGS: spent}
        arrival = ArrivalRow(pictured(ImageInput("cat", 3, 6)), 0, 32, 1_000, True, used)
        assert together.clip(arrival).tolist() == [reached]
        assert used == {ENCODED_EMBEDDINGS: spent, HELD_EMBEDDINGS: spent}, (
            "a limit changes nothing"
        )


def test_rows_without_images_are_left_alone() -> None:
    view = View()
    for limit in limits(view):
        rows = residents(5, 6)
        assert limit.clip(rows) is rows.want
    assert not limits(view)[1].counts
    resident_rows(view, pictured(ImageInput("cat", 3, 6)))
    assert limits(view)[1].counts
