"""Times steps over a grid, and fits a profile to them."""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from time import perf_counter

import numpy as np

from paceline.core.arrays import F64
from paceline.core.config import Config
from paceline.core.errors import ConfigError
from paceline.core.step_times import StepTimes
from paceline.simulate.calibration.fit import (
    Bends,
    closest,
    curve_of,
    fit,
    not_negative_squares,
    relative_errors,
    rounded,
)
from paceline.simulate.calibration.grid import (
    DecodePoint,
    GraphSizes,
    MixedPoint,
    Point,
    contexts_of,
    decode_points,
    mixed_points,
    moves,
)
from paceline.simulate.calibration.step_meter import Observation, StepMeter
from paceline.simulate.drafting import Drafting, step_times
from paceline.simulate.profile import HostTerms, MoveTerms, Profile, StepTerms
from paceline.simulate.time_curve import NOTHING, TimeCurve

log = logging.getLogger(__name__)

FEWEST = 4  # points that a fit needs
TIMES = 3  # that each is timed, if there is time
BEFORE_LAST = 4  # points that are timed before the largest one
ANY_SIZE = GraphSizes()
LARGEST = 1 / 6  # of the time, for one point at most
ROWS = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)  # where rates of reading may bend
# Where curves may bend. Decode steps have rates of reading by their rows. Beside prompts, one curve
# is closer: few contexts are hidden behind other work, or fit into a cache.
DECODE = Bends({}, rows=ROWS, each=True)
MIXED = Bends(
    {
        "positions": (16.0, 64.0, 256.0, 1024.0, 4096.0),
        "samples": (8.0,),
        "contexts": (4000.0,),
        "pairs": (1e6,),
        "deepest": (1000.0,),
    }
)


@dataclass(slots=True)
class Timed:
    """The points of one kind that there was time for."""

    kept: list[Observation] = field(default_factory=list[Observation])  # for the fit
    held_back: list[Observation] = field(default_factory=list[Observation])
    left_out: int = 0  # points, for lack of time


def calibrate(
    meter: StepMeter, about: Profile, limit_s: float, of: GraphSizes = ANY_SIZE
) -> Profile:
    """A profile like `about`, with terms of the device that were measured.

    Half of the time is for decode steps, half for steps with prompts; moves take little.
    """
    decode = timed(meter, decode_points(meter.config, of.rows), limit_s / 2)
    mixed = timed(meter, mixed_points(meter.config, of.positions), limit_s / 2)
    moved = move_terms(meter)
    meter.clear()
    lengths = dict(MIXED.knees)
    if of.positions:
        lengths["positions"] = tuple(map(float, of.positions))
    terms = (
        fit(decode.kept, replace(DECODE, sizes=of.rows)),
        fit(mixed.kept, replace(MIXED, knees=lengths, sizes=of.positions)),
    )
    errors = error_of("decode", terms[0], decode) | error_of("mixed", terms[1], mixed)
    return replace(
        about,
        source="measured",
        decode=terms[0],
        mixed=terms[1],
        moves=moved,
        host=with_launches(about.host, decode.kept, mixed.kept) if meter.depth > 1 else about.host,
        error=errors,
        notes=f"{about.notes}{said(decode, mixed)}",
    )


def timed(meter: StepMeter, points: Iterable[Point], limit_s: float) -> Timed:
    """Time points until the time is up, each of them a few times. Those that are left out are
    spread over the grid, and are the largest ones where a single one would take much of the time.
    """
    begin, seen = perf_counter(), dict[Point, list[Observation]]()
    every, unit_s = spread(sorted(points, key=cost)), 0.0  # seconds per unit of cost, at least
    for point in every * TIMES:
        began = perf_counter()
        is_late, is_large = began - begin > limit_s, cost(point) * unit_s > limit_s * LARGEST
        kept = sum(not one.is_held_back for one in seen)
        if (is_late or is_large) and kept >= FEWEST:
            continue
        one = meter.measure(point.parts, most=point.most)
        log.info("%s took %.3f ms", point, 1e3 * one.step_s)
        took = (perf_counter() - began) / cost(point)
        unit_s = min(unit_s or took, took)
        seen.setdefault(point, []).append(one)
    found = Timed(left_out=len(every) - len(seen))
    for point, runs in seen.items():
        (found.held_back if point.is_held_back else found.kept).append(typical(runs))
    if len(found.kept) < FEWEST:
        raise ConfigError(
            f"only {len(found.kept)} kinds of steps fit into max_model_len "
            f"{meter.config.step.max_model_len} and max_num_seqs {meter.config.step.max_num_seqs}; "
            "raise them"
        )
    return found


def typical(runs: Sequence[Observation]) -> Observation:
    """The one in the middle, or the faster of two: other work on the machine only adds time."""
    return sorted(runs, key=lambda one: one.step_s)[(len(runs) - 1) // 2]


def spread(points: Sequence[Point]) -> list[Point]:
    """The first, the one in the middle, those in the middle of each half, the last, and so on:
    wherever the list is cut, its begin covers all of them."""
    bits = max(len(points) - 1, 1).bit_length()
    order = [int(f"{at:0{bits}b}"[::-1], 2) for at in range(2**bits)]
    order.insert(BEFORE_LAST, len(points) - 1)
    return [points[at] for at in dict.fromkeys(order) if 0 <= at < len(points)]


def cost(point: Point) -> float:
    """Roughly: positions, and a share of what they read."""
    match point:
        case DecodePoint(rows, context):
            return rows + sum(contexts_of(rows, context)) / 1000
        case MixedPoint(prompts, count, start, beside, _):
            return prompts * count * (1 + (start + count) / 4000) + beside
        case _:
            return 0.0


def error_of(kind: str, terms: StepTerms, of: Timed) -> dict[str, float]:
    """On the points that the fit did not see."""
    if not of.held_back:
        return {}
    errors = relative_errors(terms, of.held_back)
    return {
        f"{kind}_mean": rounded(float(errors.mean())),
        f"{kind}_worst": rounded(float(errors.max())),
    }


def drafted_errors(
    profile: Profile, config: Config, depth: int, measured: StepTimes
) -> dict[str, float]:
    """On turns with drafts, which no fit has seen."""
    found = dict(step_times(profile, config, depth, Drafting(0.0)).drafted)
    pairs = [(found[size], taken) for size, taken in measured.drafted if size in found]
    errors = [abs(own - taken) / taken for own, taken in pairs]
    if not errors:
        return {}
    return {"drafted_mean": rounded(fmean(errors)), "drafted_worst": rounded(max(errors))}


def said(decode: Timed, mixed: Timed) -> str:
    counts = f"{len(decode.kept)} kinds of decode steps and {len(mixed.kept)} with prompts"
    held = f"{len(decode.held_back)} and {len(mixed.held_back)} held back"
    left = decode.left_out + mixed.left_out
    return f"Fitted to {counts}; {held}." + (
        f" {left} were left out for lack of time." * bool(left)
    )


def with_launches(
    host: HostTerms, decode: Sequence[Observation], mixed: Sequence[Observation]
) -> HostTerms:
    """Where steps are launched ahead, launching is work of the host beside the device."""
    fixed, row = closest(*launches(decode))
    taken, rows = launches(mixed)
    more = max(float(np.median(taken - fixed - row * rows)), 0.0)
    admitting = float(np.median([one.admit_s for one in (*decode, *mixed)]))
    return replace(
        host,
        plan_s=rounded(host.plan_s + fixed),
        plan_row_s=rounded(host.plan_row_s + row),
        mixed_s=rounded(more),
        admit_s=rounded(host.admit_s + admitting),
    )


def launches(of: Sequence[Observation]) -> tuple[F64, F64]:
    """The seconds of each, and the rows."""
    rows = np.array([float(one.batches[0].rows) for one in of])
    return np.array([one.launch_s for one in of]), rows


def move_terms(meter: StepMeter) -> MoveTerms:
    """What moves add to a decode step of one row."""
    point = DecodePoint(1, 64)
    alone = meter.measure(point.parts).step_s
    seen: dict[str, list[tuple[int, float]]] = {}
    for kind, blocks, moved in moves(meter.config):
        added = meter.measure(point.parts, moved).step_s - alone
        seen.setdefault(kind, []).append((blocks, max(added, 0.0)))
    return MoveTerms(**{kind: curve_through(points) for kind, points in seen.items()})


def curve_through(points: Sequence[tuple[int, float]]) -> TimeCurve:
    """A cost of the first block, and one of each further block."""
    blocks, seconds = np.array(points, np.float64).T
    if not seconds.any():
        return NOTHING
    first, further = not_negative_squares(
        np.stack([np.minimum(blocks, 1.0), blocks - np.minimum(blocks, 1.0)], axis=1), seconds
    )
    return curve_of([(0.0, 1.0, float(first)), (1.0, np.inf, float(further))])
