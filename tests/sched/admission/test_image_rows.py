"""Which rows may cover images, and prompts that are not cut."""

from paceline.core.multimodal import ImageInput
from paceline.sched.admission.limits import covering, cut
from paceline.sched.admission.rows import ArrivalRow
from tests.sched.admission.limit_support import View, residents, row
from tests.sched.admission.test_encoder_budget import pictured, resident_rows


def test_rows_that_want_something_and_have_images_ahead() -> None:
    view = View()
    rows = resident_rows(
        view, pictured(ImageInput("cat", 4, 5)), pictured(), pictured(ImageInput("dog", 4, 5))
    )
    rows.want = row(0, 5, 5)
    assert covering(view.images, rows) == [2]
    assert covering(View().images, residents(5)) == []


def test_a_prompt_that_may_not_be_cut_gets_nothing() -> None:
    settings = {"encoder_cache_size": 4, "max_num_batched_tokens": 64}
    for chunked, reached in ((True, 6), (False, 0)):
        view = View(enable_chunked_prefill=chunked, **settings)
        arrival = ArrivalRow(pictured(ImageInput("cat", 6, 5)), 0, 32, 1_000, True, {})
        assert cut(view.images, arrival, together=True).tolist() == [reached]
