"""How products are shared out among the processors of a GPU; the GPU itself is not needed."""

import pytest

from paceline.runner.cuda.gemm.streamed_gemm import (
    BLOCK,
    GATED_LINES,
    GROUPS,
    LEAST_LINES,
    MOST_LINES,
    MOST_STAGES,
    PIECE,
    TILE,
    Wave,
    source_for,
)
from paceline.runner.cuda.kernels.nvrtc import SHARED_BYTES

PROCESSORS = 132
PRODUCTS = {
    "14B qkv": (5120, 7168),
    "14B out": (5120, 5120),
    "14B gate and up": (5120, 34816),
    "14B down": (17408, 5120),
    "8B qkv": (4096, 6144),
    "8B gate and up": (4096, 24576),
    "Llama 8B gate and up": (4096, 28672),
    "Llama 8B down": (14336, 4096),
}


@pytest.mark.parametrize("product", PRODUCTS)
def test_a_round_has_every_output_once_and_leaves_few_processors_idle(product: str) -> None:
    inputs, outputs = PRODUCTS[product]
    found = Wave.of(inputs, outputs, PROCESSORS)
    assert found is not None
    each = GROUPS * found.lines
    tiles = found.programs // found.split
    assert (tiles - 1) * each < outputs <= tiles * each
    assert 0.9 * PROCESSORS <= found.programs <= PROCESSORS


@pytest.mark.parametrize("product", PRODUCTS)
def test_its_stages_and_its_sums_fit_into_a_processor(product: str) -> None:
    found = Wave.of(*PRODUCTS[product], PROCESSORS)
    assert found is not None
    for tiles in (1, 2, 3):
        assert found.fits(tiles)
        assert found.stages(tiles) >= 3
        assert found.shared(tiles) <= SHARED_BYTES
        assert found.shared(tiles) >= tiles * TILE * GROUPS * found.lines * 4


def test_two_rounds_have_room_for_more_rows() -> None:
    inputs, outputs = PRODUCTS["14B gate and up"]
    found = Wave(72, 1, 242)
    assert Wave.of(inputs, outputs, PROCESSORS, most=1, rounds=2) == found
    assert found.fits(4)
    assert found.is_by_row(4)
    source = source_for(found, 4, "SILU")
    assert "m64n144k16" in source  # of both warpgroups, which share the rows
    assert "m64n72k16" in source_for(found, 3, "SILU")


def test_warpgroups_share_outputs_only_of_two_blocks_of_scales() -> None:
    """A warpgroup knows the scales of two. Programs begin at multiples of their outputs."""
    for lines in range(LEAST_LINES, MOST_LINES + 1, PIECE):
        width = GROUPS * lines
        starts = range(0, BLOCK * width, width)
        most = max((start + width - 1) // BLOCK - start // BLOCK + 1 for start in starts)
        wave = Wave(lines, 1, PROCESSORS)
        if not wave.fits(2, "blocks"):
            continue
        source = source_for(wave, 2, "ADD", scales="blocks")
        assert ("#define BY_ROWS 1\n" in source) is (most <= 2), lines
        assert "#define BY_ROWS 0\n" in source_for(wave, 2, "SILU", scales="blocks")
    assert Wave.of(6144, 11008, PROCESSORS) == Wave(88, 2, 126)  # of which a program has three


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        (5120, 151936),  # a head has outputs for many rounds
        (1024, 256),  # too few for the processors
        (5000, 5120),  # inputs that are no multiple of a stage
        (4096, 4104),  # outputs that do not leave in whole pieces
    ],
)
def test_what_is_no_round_is_left_to_the_library(inputs: int, outputs: int) -> None:
    assert Wave.of(inputs, outputs, PROCESSORS) is None


def test_rows_that_a_processor_cannot_hold_do_not_fit() -> None:
    found = Wave.of(5120, 34816, PROCESSORS)
    assert found is not None
    assert not found.fits(4)


def test_the_source_names_as_many_registers_as_a_thread_has_sums() -> None:
    source = source_for(Wave(40, 2, 128), 1, "ADD")
    assert "m64n40k16" in source
    assert "%19}, %20, %21, p" in source
    assert "#define OUTCOME ADD\n" in source
    assert "#define ADD 1\n" in source


def test_a_small_product_with_gates_has_a_round_of_few_lines() -> None:
    assert Wave.of(1024, 6144, PROCESSORS, GATED_LINES, 1) == Wave(24, 1, 128)
    assert Wave.of(1024, 6144, PROCESSORS) != Wave(24, 1, 128)
    assert Wave.of(1024, 4096, PROCESSORS, GATED_LINES, 1) is None  # would have to be split


def test_there_is_room_for_barriers_and_lengths_beside_stages() -> None:
    """Which are not in what a launch asks for; the driver keeps a KiB for itself."""
    barriers, lengths = 2 * 8 * MOST_STAGES, 4 * 3 * TILE
    assert 1024 + SHARED_BYTES + barriers + lengths <= 228 << 10
