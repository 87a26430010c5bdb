"""Which CUDA graph a step fits into; needs triton, but no GPU."""

import pytest

pytest.importorskip("triton")

from paceline.runner.cuda.graphs.mixed import DRAFTED, Extent


def test_the_smallest_graph_with_room_is_chosen() -> None:
    drafts = Extent.of_drafts(16384)
    assert drafts.lengths == DRAFTED
    assert drafts.fitting(5, 1, 5) == 8
    assert drafts.fitting(9, 2, 9) == 16
    assert drafts.fitting(512, 100, 512) == 512
    assert drafts.fitting(1281, 1, 5) is None


def test_rows_with_fewer_drafts_need_lines_too() -> None:
    """Six rows, of which two have a draft: eight positions, and two lines each."""
    drafts = Extent.of_drafts(16384)
    assert drafts.fitting(8, 2, 12) == 16
    assert Extent.of_drafts(8).fitting(8, 2, 12) is None


def test_many_long_rows_need_a_longer_graph() -> None:
    prompts = Extent.of_prompts(4096, 256)
    assert prompts.fitting(100, 8, 0) == 128
    assert prompts.fitting(100, 9, 0) == 640
