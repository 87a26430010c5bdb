"""A row ends before an image for which there is no room, whatever the other rows do."""

from paceline.core.multimodal import ImageInput
from tests.sched.admission.limit_support import View
from tests.sched.admission.test_encoder_budget import limits, pictured, resident_rows


def test_an_image_that_does_not_fit_beside_those_that_are_held_ends_a_row() -> None:
    view = View(encoder_cache_size=8)
    view.images.cache.add("cow", 6, step=1)
    view.images.cache.hold("cow")
    rows = resident_rows(view, pictured(ImageInput("cat", 4, 5)), pictured(ImageInput("cow", 4, 6)))
    alone, _ = limits(view)
    assert alone.clip(rows).tolist() == [4, 20]


def test_an_image_that_is_kept_and_not_held_makes_room() -> None:
    view = View(encoder_cache_size=8)
    view.images.cache.add("cow", 6, step=1)
    rows = resident_rows(view, pictured(ImageInput("cat", 4, 5)))
    assert limits(view)[0].clip(rows).tolist() == [20]
