"""How products of experts in MXFP4 are shared out; the GPU itself is not needed."""

import pytest

from paceline.runner.cuda.experts.fp4 import (
    PAIRS,
    source_for,
    stage_bytes,
    stages_of,
    tile_pairs,
)
from paceline.runner.cuda.gemm.linear_kernel import ExpertGate
from paceline.runner.cuda.kernels.nvrtc import ALIGNED, SHARED_BYTES
from paceline.runner.models.experts import ClampedGate


@pytest.mark.parametrize("pairs", PAIRS)
def test_stages_fit_into_a_processor(pairs: int) -> None:
    assert stage_bytes(pairs) % ALIGNED == 0
    assert stages_of(pairs) >= 4
    assert ALIGNED + stages_of(pairs) * stage_bytes(pairs) <= SHARED_BYTES


@pytest.mark.parametrize(
    ("rows", "due"), [(5, 16), (64, 16), (86, 32), (128, 32), (256, 48), (8192, 112)]
)
def test_a_tile_has_room_for_half_more_pairs_than_an_expert_has(rows: int, due: int) -> None:
    """Of gpt-oss-20b: 32 experts, of which a position has four."""
    assert tile_pairs(4 * rows, 32) == due


def test_the_source_has_the_numbers_of_a_clamp() -> None:
    source = source_for(112, ExpertGate(True, ClampedGate(1.702, 7.0)))
    assert "#define ALPHA 1.702000e+00f\n" in source
    assert "#define LIMIT 7.000000e+00f\n" in source
    assert "m64n112k16" in source
    assert "#define GATED 0\n" in source_for(16, None)
