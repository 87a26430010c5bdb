"""Which experts compute which positions: scores, the best experts of each position, and tiles.

A pair is a position and one of its experts, `position * chosen + rank of the expert`. A tile is
some pairs of one expert, for one program of a grouped GEMM. Pairs are sorted by expert on the GPU,
so that a graph fits every choice:

    pairs    | expert 0      | expert 2 | expert 3                |      expert 1 has no pairs
    tiles    | 0    | 1      | 2        | 4    | 5    | 6         |      3 and 7 have none
"""

# Kernels take pointers, strides and sizes one by one, and are written as one piece.
# ruff: noqa: PLR0913, PLR0917
# Parameters of kernels have no types.
# pyright: standard

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from paceline.runner.cuda.experts.scores import scores_of
from paceline.runner.cuda.experts.sort import SORTED, sort_pairs
from paceline.runner.cuda.gemm.fixed_tiles import multiplied
from paceline.runner.cuda.gemm.linear_kernel import ExpertChoice
from paceline.runner.cuda.kernels.layers import normalized
from paceline.runner.models.experts import ExpertGroups, Routing

LEAST_PAIRS, FIXED_PAIRS, MOST_PAIRS = 16, 64, 128  # of a tile
ALONE = 4  # rows up to which each pair is a tile
FEW = 16  # rows up to which one kernel computes norm, scores and choice
EACH = 4  # experts that a program of that kernel has
NO_GROUPS = ExpertGroups(1, 1, 1)


@dataclass(frozen=True, slots=True, eq=False)
class ExpertRouter:
    """Scores positions for experts, and chooses.

    every       [experts, width] in float32, the factor of the norm included; then the gate of a
                shared expert if it has one
    experts     without the shared one
    bias        [experts] in float32
    correction  [experts] in float32; see `MoESpec`
    ended       [FEW]; how many programs of a row have ended; zeros between kernels
    halves      [width, 2 * experts] in bfloat16, whose sums are the weights, for tensor cores;
                None: inputs are not bfloat16, or the device is no GPU
    is_invariant  one kernel scores any number of positions, and tiles of pairs have one size
    """

    every: Tensor
    experts: int
    bias: Tensor | None
    routing: Routing
    correction: Tensor | None
    ended: Tensor
    halves: Tensor | None = None
    is_invariant: bool = False

    @staticmethod
    def of(
        weight: Tensor,
        bias: Tensor | None,
        routing: Routing,
        correction: Tensor | None = None,
        dtype: torch.dtype = torch.float32,
        gate: Tensor | None = None,
    ) -> "ExpertRouter":
        """For inputs of a type. A gate of a shared expert has weights [1, width]."""
        every = weight.contiguous() if gate is None else torch.cat((weight, gate))
        ended, halves = torch.zeros(FEW, dtype=torch.int32, device=weight.device), None
        if dtype == torch.bfloat16 and weight.is_cuda:
            high = weight.bfloat16()
            halves = torch.cat((high, (weight - high.float()).bfloat16())).t()
        return ExpertRouter(every, len(weight), bias, routing, correction, ended, halves)

    @property
    def weight(self) -> Tensor:
        return self.every[: self.experts]

    def outputs(self, hidden: Tensor, floor: float) -> Tensor:
        """Of `hidden` [positions, width], which are normalised first: [positions, experts], and a
        last column for the gate. Few positions, nothing of which is rounded."""
        return scores_of(hidden, floor, self.every, self.bias)

    def choose(self, hidden: Tensor, floor: float) -> tuple[Tensor, ExpertChoice]:
        """The normalised rows of `hidden` [positions, width], and their experts."""
        rows, experts = len(hidden), self.experts
        if self.is_invariant:
            x = normalized(hidden, floor)
            scores = multiplied(x.float(), self.weight, self.bias)
            return x, choose_experts(scores, self.routing, self.correction, FIXED_PAIRS)
        if rows <= FEW and experts % EACH == 0:
            return self._choose_at_once(hidden, floor)
        x = normalized(hidden, floor)
        if self.halves is None:
            scores = F.linear(x.float(), self.weight, self.bias)
        else:
            both = torch.mm(x, self.halves, out_dtype=torch.float32)
            scores = both[:, :experts].add_(both[:, experts:])
            if self.bias is not None:
                scores += self.bias
        return x, choose_experts(scores, self.routing, self.correction)

    def _choose_at_once(self, hidden: Tensor, floor: float) -> tuple[Tensor, ExpertChoice]:
        (rows, width), experts = hidden.shape, self.experts
        found = _Found.of(rows, self.routing.chosen, experts, hidden.device)
        x, scores = torch.empty_like(hidden), hidden.new_empty((rows, experts), dtype=torch.float32)
        _route[(experts // EACH, rows)](
            hidden,
            self.every,
            self.every if self.bias is None else self.bias,
            self.every if self.correction is None else self.correction,
            x,
            scores,
            self.ended,
            *found.outputs,
            floor,
            WIDTH=width,
            PADDED=triton.next_power_of_2(width),
            EACH=EACH,
            BIASED=self.bias is not None,
            **found.sizes(self.routing, self.correction),
            num_warps=8,
            launch_pdl=True,
        )
        return x, found.choice()


def choose_experts(
    scores: Tensor, routing: Routing, correction: Tensor | None = None, tile_pairs: int = 0
) -> ExpertChoice:
    """Choose by the outputs of a router, [positions, experts]. A tile has as many pairs as are fast
    for so many positions, or `tile_pairs`."""
    rows, experts = scores.shape
    found = _Found.of(rows, routing.chosen, experts, scores.device, tile_pairs)
    _choose[(rows,)](
        scores,
        scores.stride(0),
        scores if correction is None else correction,
        *found.outputs,
        **found.sizes(routing, correction),
        num_warps=1,
        launch_pdl=True,
    )
    return found.choice()


def constants(
    routing: Routing, is_corrected: bool
) -> tuple[bool, bool, bool, float, int, int, int]:
    """What `_best` reads of a routing."""
    groups = routing.groups or NO_GROUPS
    return (
        routing.shares_sum_to_one,
        routing.scores == "sigmoid",
        is_corrected,
        routing.scale,
        groups.count,
        groups.chosen,
        groups.judges,
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Found:
    """What a choice gives: the experts of each position and their shares. If positions are few, the
    tiles too."""

    experts: int
    expert: Tensor  # [positions, chosen]
    share: Tensor  # [positions, chosen]
    pairs: Tensor  # [positions * chosen]
    tiles: Tensor  # [tiles, 3]
    tile_pairs: int

    @staticmethod
    def of(
        rows: int, chosen: int, experts: int, device: torch.device, tile_pairs: int = 0
    ) -> "_Found":
        pairs = rows * chosen
        each = min(max(triton.next_power_of_2(pairs // experts), LEAST_PAIRS), MOST_PAIRS)
        each = tile_pairs or each
        tiles = pairs if rows <= ALONE else pairs // each + experts
        ints = {"dtype": torch.int32, "device": device}
        return _Found(
            experts,
            torch.empty((rows, chosen), **ints),
            torch.empty((rows, chosen), dtype=torch.float32, device=device),
            torch.empty(pairs, **ints),
            torch.empty((tiles, 3), **ints),
            each,
        )

    @property
    def outputs(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.expert, self.share, self.pairs, self.tiles

    def sizes(self, routing: Routing, correction: Tensor | None) -> dict[str, Any]:
        rows, chosen = self.expert.shape
        return {
            "COUNT": self.experts,
            "EXPERTS": triton.next_power_of_2(self.experts),
            "CHOSEN": chosen,
            "RANKS": triton.next_power_of_2(chosen),
            "ROUTING": constants(routing, correction is not None),
            "TILED": rows <= ALONE,
        }

    def choice(self) -> ExpertChoice:
        rows, chosen = self.expert.shape
        ends, index = None, None
        if rows > ALONE:
            size = rows * chosen
            ends, index = self.pairs.new_empty(self.experts), torch.empty_like(self.pairs)
            sort_pairs[(self.experts,)](
                self.expert,
                self.pairs,
                self.tiles,
                ends,
                index,
                size,
                COUNT=self.experts,
                TILE=self.tile_pairs,
                SIZE=min(triton.next_power_of_2(size), SORTED),
                num_warps=8 if size > SORTED // 4 else 4,
                launch_pdl=True,
            )
        sizes = self.tile_pairs, self.experts
        return ExpertChoice(self.share, self.pairs, self.tiles, *sizes, ends, index)


@triton.jit
def _of_best_groups(
    ranked,
    COUNT: tl.constexpr,
    EXPERTS: tl.constexpr,
    ROUTING: tl.constexpr,
):
    """Scores [EXPERTS], with -inf for experts whose group is not chosen."""
    GROUPS: tl.constexpr = ROUTING[4]
    GROUPS_CHOSEN: tl.constexpr = ROUTING[5]
    JUDGES: tl.constexpr = ROUTING[6]
    SIZE: tl.constexpr = COUNT // GROUPS
    expert = tl.arange(0, EXPERTS)
    points = tl.full([EXPERTS], float("-inf"), tl.float32)  # of the group of each expert
    for group in tl.static_range(GROUPS):
        is_own = expert // SIZE == group
        own = tl.where(is_own, ranked, float("-inf"))
        sum_of_best = 0.0
        for _ in tl.static_range(JUDGES):
            sum_of_best += tl.max(own, 0)
            own = tl.where(expert == tl.argmax(own, 0), float("-inf"), own)
        points = tl.where(is_own, sum_of_best, points)
    found = tl.full([EXPERTS], float("-inf"), tl.float32)
    for _ in tl.static_range(GROUPS_CHOSEN):
        is_best = expert // SIZE == tl.argmax(points, 0) // SIZE
        found = tl.where(is_best, ranked, found)
        points = tl.where(is_best, float("-inf"), points)
    return found


@triton.jit
def _best(
    given,
    row,
    correction,
    found,
    share,
    pairs,
    tiles,
    COUNT: tl.constexpr,
    EXPERTS: tl.constexpr,
    CHOSEN: tl.constexpr,
    RANKS: tl.constexpr,
    ROUTING: tl.constexpr,
    TILED: tl.constexpr,
):
    """Write the best experts of a row by outputs of its router, [EXPERTS]. `TILED`: each is a
    tile."""
    SUM_TO_ONE: tl.constexpr = ROUTING[0]
    SIGMOID: tl.constexpr = ROUTING[1]
    CORRECTED: tl.constexpr = ROUTING[2]
    SCALE: tl.constexpr = ROUTING[3]
    expert, rank = tl.arange(0, EXPERTS), tl.arange(0, RANKS)
    if SIGMOID:
        scores, total = 1 / (1 + tl.exp(-given)), 1.0
    else:
        scores = tl.exp(given - tl.max(given, 0))
        total = tl.sum(scores, 0)
    left = scores
    if CORRECTED:
        left = scores / total + tl.load(correction + expert, mask=expert < COUNT, other=0.0)
    left = tl.where(expert < COUNT, left, float("-inf"))
    if ROUTING[4] > 1:
        left = _of_best_groups(left, COUNT, EXPERTS, ROUTING)
    best = tl.zeros([RANKS], tl.int32)
    each = tl.zeros([RANKS], tl.float32)
    for at in tl.static_range(CHOSEN):
        one = tl.minimum(tl.argmax(left, 0), COUNT - 1)  # of NaN it may be one behind the last
        best = tl.where(rank == at, one, best)
        own = tl.sum(tl.where(expert == one, scores, 0.0), 0) if CORRECTED else tl.max(left, 0)
        each = tl.where(rank == at, own, each)
        left = tl.where(expert == one, float("-inf"), left)
    if SUM_TO_ONE:
        total = tl.sum(each, 0)
    pair, there = row * CHOSEN + rank, rank < CHOSEN
    tl.store(found + pair, best, mask=there)
    tl.store(share + pair, each / total * SCALE, mask=there)
    if TILED:
        tl.store(pairs + pair, pair, mask=there)
        tl.store(tiles + pair * 3, best, mask=there)
        tl.store(tiles + pair * 3 + 1, pair, mask=there)
        tl.store(tiles + pair * 3 + 2, pair + 1, mask=there)


@triton.jit
def _choose(
    scores,
    stride,
    correction,
    found,
    share,
    pairs,
    tiles,
    COUNT: tl.constexpr,
    EXPERTS: tl.constexpr,
    CHOSEN: tl.constexpr,
    RANKS: tl.constexpr,
    ROUTING: tl.constexpr,
    TILED: tl.constexpr,
):
    tl.extra.cuda.gdc_launch_dependents()
    tl.extra.cuda.gdc_wait()
    row, expert = tl.program_id(0), tl.arange(0, EXPERTS)
    spot = scores + row.to(tl.int64) * stride + expert
    given = tl.load(spot, mask=expert < COUNT, other=float("-inf"))
    out = correction, found, share, pairs, tiles
    _best(given, row, *out, COUNT, EXPERTS, CHOSEN, RANKS, ROUTING, TILED)


@triton.jit
def _route(
    hidden,
    weight,
    bias,
    correction,
    x,
    scores,
    ended,
    found,
    share,
    pairs,
    tiles,
    floor,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    EACH: tl.constexpr,
    BIASED: tl.constexpr,
    COUNT: tl.constexpr,
    EXPERTS: tl.constexpr,
    CHOSEN: tl.constexpr,
    RANKS: tl.constexpr,
    ROUTING: tl.constexpr,
    TILED: tl.constexpr,
):
    """Normalise a row, and score it for some experts. Of the programs of a row, the last one to
    end chooses."""
    part, row = tl.program_id(0), tl.program_id(1)
    own, expert = part * EACH + tl.arange(0, EACH), tl.arange(0, EXPERTS)
    index = tl.arange(0, PADDED)
    inside = index < WIDTH
    spot = weight + own[:, None] * WIDTH + index[None, :]
    factors = tl.load(spot, mask=inside[None, :], other=0.0)
    tl.extra.cuda.gdc_launch_dependents()
    tl.extra.cuda.gdc_wait()
    values = tl.load(hidden + row * WIDTH + index, mask=inside, other=0.0).to(tl.float32)
    values = values / tl.sqrt(tl.sum(values * values, 0) + floor * floor)
    rounded = values.to(x.dtype.element_ty)
    if part == 0:
        tl.store(x + row * WIDTH + index, rounded, mask=inside)
    each = tl.sum(factors * rounded.to(tl.float32)[None, :], 1)
    if BIASED:
        each += tl.load(bias + own)
    tl.store(scores + row * COUNT + own, each)
    tl.debug_barrier()  # all scores are written before the counter rises
    before = tl.atomic_add(ended + row, 1, sem="acq_rel")
    if before == COUNT // EACH - 1:
        tl.store(ended + row, 0)
        every = scores + row * COUNT + expert
        given = tl.load(every, mask=expert < COUNT, other=float("-inf"), cache_modifier=".cg")
        out = correction, found, share, pairs, tiles
        _best(given, row, *out, COUNT, EXPERTS, CHOSEN, RANKS, ROUTING, TILED)
