"""Products of some rows, at the speed at which their weights can be read.

The kernel is `streamed_gemm.cu`; here is who uses it, and in which shape.
"""

from dataclasses import dataclass
from functools import cache
from typing import Literal, get_args

import torch
from torch import Tensor

from paceline.runner.cuda.kernels.instructions import multiply
from paceline.runner.cuda.kernels.nvrtc import (
    ALIGNED,
    SHARED_BYTES,
    Kernel,
    TensorMap,
    can_compile,
    source_of,
)
from paceline.runner.layers.linear import DenseLinear

Outcome = Literal["PUT", "ADD", "SILU", "GELU"]

GROUPS, DEPTH, TILE, PIECE = 2, 64, 64, 8  # as in the kernel; outputs come in pieces
ROW_BYTES = DEPTH * 2
MOST_STAGES, MOST_SPLIT = 12, 2
LEAST_LINES, MOST_LINES = 32, 136  # of a warpgroup
MOST_SUMS = 204  # that a thread can hold, of its 240 registers
MOST_FETCHED = 256  # rows at a time
LEAST_BYTES = 32 << 20  # of weights: what is less is read before a round has begun
GATED_BYTES, GATED_LINES = 8 << 20, 24  # where a round spares a kernel, for one tile of rows
BUSY = 0.9  # the share of processors that a round needs, to be worth it


@dataclass(frozen=True, slots=True)
class Wave:
    """How the outputs of a product are shared out among processors, in one round."""

    lines: int
    split: int
    programs: int

    @staticmethod
    def of(
        inputs: int,
        outputs: int,
        processors: int,
        least: int = LEAST_LINES,
        most: int = MOST_SPLIT,
    ) -> "Wave | None":
        """As few neighbours as possible share their inputs; none if no round is good."""
        if outputs % (2 * PIECE):  # whole pieces leave, also of either half
            return None
        for split in range(1, most + 1):
            tiles = processors // split
            lines = -(-outputs // (tiles * GROUPS * PIECE)) * PIECE
            programs = -(-outputs // (GROUPS * lines)) * split
            if least <= lines <= MOST_LINES and programs >= BUSY * processors:
                return Wave(lines, split, programs) if inputs % (DEPTH * split) == 0 else None
        return None

    def stages(self, tiles: int) -> int:
        """For so many tiles of rows, as many as there is memory for."""
        bytes_ = (GROUPS * self.lines + tiles * TILE) * ROW_BYTES
        return min(MOST_STAGES, (SHARED_BYTES - ALIGNED) // bytes_)

    def shared(self, tiles: int) -> int:
        """Bytes for stages, and afterwards for sums."""
        stages = self.stages(tiles) * (GROUPS * self.lines + tiles * TILE) * ROW_BYTES
        sums = tiles * TILE * (GROUPS * self.lines * 4 + 32)
        return ALIGNED + max(stages, sums)

    def fits(self, tiles: int) -> bool:
        held = tiles * self.lines // 2
        is_held = held <= MOST_SUMS and tiles * TILE <= MOST_FETCHED
        return is_held and self.shared(tiles) <= SHARED_BYTES


class StreamedLinear:
    """A product that takes some rows. Where it does not, the library is as good."""

    def __init__(self, product: DenseLinear, is_gated: bool = False) -> None:
        weight = product.weight  # [inputs, outputs], laid out as [outputs, inputs]
        self._lines = weight.t()
        self._round: Wave | None = None
        size = weight.numel() * weight.element_size()
        self._is_small = size < LEAST_BYTES
        least = GATED_BYTES if is_gated else LEAST_BYTES
        is_plain = weight.dtype == torch.bfloat16 and weight.stride(0) == 1 and product.bias is None
        if size >= least and is_plain and can_compile(weight.device):
            processors = torch.cuda.get_device_properties(weight.device).multi_processor_count
            inputs, outputs = weight.shape
            shape = inputs, outputs, processors
            self._round = Wave.of(*shape, GATED_LINES, 1) if self._is_small else Wave.of(*shape)
        self._map = (
            None if self._round is None else TensorMap(self._lines, (self._round.lines, DEPTH))
        )

    def takes(self, rows: int, most: int) -> bool:
        """Up to `most`, from where on the library is faster."""
        tiles, most = -(-rows // TILE), TILE if self._is_small else most
        return rows <= most and self._round is not None and self._round.fits(tiles)

    def __call__(self, x: Tensor) -> Tensor:
        out = torch.empty((len(x), len(self._lines)), dtype=x.dtype, device=x.device)
        self._run("PUT", x, out)
        return out

    @property
    def can_norm(self) -> bool:
        """Who reads all inputs of a row knows its length."""
        return self._round is not None and self._round.split == 1

    def gated(self, x: Tensor, is_silu: bool, floor: float | None = None) -> Tensor:
        """act(gate) * up, of a product that makes both; of rows over their lengths, which are
        `floor` at least, if there is one."""
        out = torch.empty((len(x), len(self._lines) // 2), dtype=x.dtype, device=x.device)
        self._run("SILU" if is_silu else "GELU", x, out, floor)
        return out

    def add_to(self, total: Tensor, x: Tensor) -> None:
        self._run("ADD", x, total)

    def _run(self, outcome: Outcome, x: Tensor, out: Tensor, floor: float | None = None) -> None:
        assert self._round is not None
        assert self._map is not None
        rows, inputs = x.shape
        assert x.dtype == out.dtype == torch.bfloat16
        assert inputs == self._lines.shape[1]
        assert out.is_contiguous()
        kernel = _kernel(self._round, -(-rows // TILE), outcome, floor is not None)
        shape = rows, inputs, out.shape[1]
        arguments = (self._map, TensorMap(x, (rows, DEPTH)), out, *shape, floor or 0.0)
        kernel.launch(self._round.programs, arguments)


@cache
def _kernel(round_: Wave, tiles: int, outcome: Outcome, is_normed: bool) -> Kernel:
    source = source_for(round_, tiles, outcome, is_normed)
    return Kernel(source, "streamed", (GROUPS + 1) * 128, round_.shared(tiles), round_.split)


def source_for(round_: Wave, tiles: int, outcome: Outcome, is_normed: bool = False) -> str:
    sizes: dict[str, int | str] = {name: at for at, name in enumerate(get_args(Outcome))}
    sizes |= {"OUTCOME": outcome, "TILES": tiles, "STAGES": round_.stages(tiles)}
    sizes |= {"LINES": round_.lines, "SPLIT": round_.split, "NORMED": int(is_normed)}
    return source_of("streamed_gemm", sizes, multiply("multiply", round_.lines))
