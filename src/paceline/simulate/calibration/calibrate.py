"""Times steps over a grid, and fits a profile to them."""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter

import numpy as np

from paceline.core.errors import ConfigError
from paceline.simulate.calibration.fit import (
    Knees,
    closest,
    curve_of,
    fit,
    not_negative_squares,
    relative_errors,
    rounded,
)
from paceline.simulate.calibration.grid import (
    DecodePoint,
    MixedPoint,
    Point,
    decode_points,
    mixed_points,
    moves,
)
from paceline.simulate.calibration.step_meter import Observation, StepMeter
from paceline.simulate.profile import HostTerms, MoveTerms, Profile, StepTerms
from paceline.simulate.time_curve import NOTHING, TimeCurve

log = logging.getLogger(__name__)

HELD_BACK = 5  # every so many points, one is left out of the fit
FEWEST = 4  # points that a fit needs
BEFORE_LAST = 4  # points that are timed before the largest one
LARGEST = 1 / 6  # of the time, for one point at most
# Where curves may bend. Few contexts may be hidden behind other work, or fit into a cache.
DECODE: Knees = {
    "positions": (1.0, 2.0, 4.0, 8.0, 32.0, 64.0, 128.0, 256.0, 512.0),
    "contexts": (65536.0,),
    "longest": (),
}
MIXED: Knees = {
    "positions": (16.0, 64.0, 256.0, 1024.0, 4096.0),
    "samples": (8.0,),
    "contexts": (),
    "longest": (16.0, 64.0, 512.0, 2048.0),
    "pairs": (1e6,),
}


@dataclass(slots=True)
class Timed:
    """The points of one kind that there was time for."""

    kept: list[Observation] = field(default_factory=list[Observation])  # for the fit
    held_back: list[Observation] = field(default_factory=list[Observation])
    left_out: int = 0  # points, for lack of time

    @property
    def count(self) -> int:
        return len(self.kept) + len(self.held_back)


def calibrate(meter: StepMeter, about: Profile, limit_s: float) -> Profile:
    """A profile like `about`, with terms of the device that were measured.

    Half of the time is for decode steps, half for steps with prompts; moves take little.
    """
    decode = timed(meter, decode_points(meter.config), limit_s / 2)
    mixed = timed(meter, mixed_points(meter.config), limit_s / 2)
    moved = move_terms(meter)
    meter.clear()
    host = with_launches(about.host, decode.kept, meter.depth)
    terms = fit(decode.kept, DECODE), fit(mixed.kept, MIXED)
    errors = error_of("decode", terms[0], decode) | error_of("mixed", terms[1], mixed)
    return replace(
        about,
        source="measured",
        decode=terms[0],
        mixed=terms[1],
        moves=moved,
        host=host,
        error=errors,
        notes=f"{about.notes}{said(decode, mixed)}",
    )


def timed(meter: StepMeter, points: Iterable[Point], limit_s: float) -> Timed:
    """Time points until the time is up; those that are left out are spread over the grid, and are
    the largest ones where a single one would take much of the time."""
    found, begin = Timed(), perf_counter()
    unit_s = 0.0  # seconds for each unit of cost, at least
    for number, point in enumerate(spread(sorted(points, key=cost))):
        began = perf_counter()
        is_late, is_large = began - begin > limit_s, cost(point) * unit_s > limit_s * LARGEST
        if (is_late or is_large) and len(found.kept) >= FEWEST:
            found.left_out += 1
            continue
        one = meter.measure(point.parts, most=point.most)
        log.info("%s: %s took %.3f ms", number + 1, point, 1e3 * one.step_s)
        took = (perf_counter() - began) / cost(point)
        unit_s = min(unit_s or took, took)
        is_held_back = found.count % HELD_BACK == HELD_BACK - 1
        (found.held_back if is_held_back else found.kept).append(one)
    if len(found.kept) < FEWEST:
        raise ConfigError(
            f"only {len(found.kept)} kinds of steps fit into max_model_len "
            f"{meter.config.step.max_model_len} and max_num_seqs {meter.config.step.max_num_seqs}; "
            "raise them"
        )
    return found


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
            return rows + rows * context / 1000
        case MixedPoint(prompts, count, start, beside):
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


def said(decode: Timed, mixed: Timed) -> str:
    counts = f"{len(decode.kept)} kinds of decode steps and {len(mixed.kept)} with prompts"
    held = f"{len(decode.held_back)} and {len(mixed.held_back)} held back"
    left = decode.left_out + mixed.left_out
    return f"Fitted to {counts}; {held}." + (
        f" {left} were left out for lack of time." * bool(left)
    )


def with_launches(host: HostTerms, decode: Sequence[Observation], depth: int) -> HostTerms:
    """Where steps are launched ahead, launching is work of the host beside the device."""
    if depth == 1:
        return host
    fixed, row = closest(
        np.array([one.launch_s for one in decode]),
        np.array([one.batches[0].rows for one in decode]),
    )
    return replace(
        host, plan_s=rounded(host.plan_s + fixed), plan_row_s=rounded(host.plan_row_s + row)
    )


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
