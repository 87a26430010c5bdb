"""Times steps over a grid, and fits a profile to them."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

import numpy as np

from paceline.core.arrays import F64
from paceline.core.config import Config
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
    decode_points,
    mixed_points,
    moves,
)
from paceline.simulate.calibration.step_meter import Observation, StepMeter
from paceline.simulate.calibration.survey import Survey, Timed
from paceline.simulate.drafting import Drafting, step_times
from paceline.simulate.profile import HostTerms, MoveTerms, Profile, StepTerms
from paceline.simulate.time_curve import NOTHING, TimeCurve

ANY_SIZE = GraphSizes()
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


def calibrate(
    meter: StepMeter, about: Profile, limit_s: float, of: GraphSizes = ANY_SIZE
) -> Profile:
    """A profile like `about`, with terms of the device that were measured.

    Moves take little. Half of what is left is for decode steps, and the rest for steps with
    prompts.
    """
    end = meter.clock() + limit_s
    moved = move_terms(meter)
    half = (end - meter.clock()) / 2
    decode = Survey(meter, decode_points(meter.config, of.rows), half).timed()
    left = end - meter.clock()
    mixed = Survey(meter, mixed_points(meter.config, of.positions), left).timed()
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
    left, busy = decode.left_out + mixed.left_out, decode.busy + mixed.busy
    said = f"Fitted to {counts}; {held}."
    if left:
        said += f" {left} were left out for lack of time."
    if busy:
        said += f" During {busy} of them other programs used the machine."
    return said


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
