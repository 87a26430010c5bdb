"""Times steps over a grid, and fits a profile to them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean
from typing import Any

import numpy as np

from paceline.core.arrays import F64
from paceline.core.capabilities import StepTimes
from paceline.core.settings.config import Config
from paceline.simulator.calibration.grid import (
    DecodePoint,
    GraphSizes,
    Survey,
    Timed,
    decode_points,
    mixed_points,
    moves,
)
from paceline.simulator.calibration.step_meter import Observation, StepMeter
from paceline.simulator.device.profile import HostTerms, MoveTerms, Profile, StepTerms
from paceline.simulator.device.time_curve import NO_RATES, NOTHING, RowRates, TimeCurve, larger
from paceline.simulator.device.timed_runner import Drafting, step_times

Knees = dict[str, tuple[float, ...]]  # by the name of an amount; where a curve may bend
SMALLEST = 1e-15  # a coefficient below it is 0
SIGNIFICANT = 4  # digits of what is written
ROUNDS, LEAST_S = 20, 1e-6  # of a search for the least sum of errors; smaller ones count as this
UNEVEN = 1.1  # contexts are uneven if the longest is longer than the mean by this factor
LEAST = 0.1  # share of a step that is no waiting for the longest row
PASSES, ROUNDS_OF_RATES = 3, 3  # of a fit, and of a search in each
CANDIDATES = (0.0, *(float(one) for one in np.geomspace(1e-9, 1e-4, 141)))  # seconds per token


@dataclass(frozen=True, slots=True)
class Bends:
    """Where the terms of one kind of steps may bend.

    knees    of curves, by their amount
    sizes    that steps are filled up to
    rows     at which reading has rates of its own
    each     whether every size has a rate of its own for the longest row, and a knee
    """

    knees: Knees
    sizes: tuple[int, ...] = ()
    rows: tuple[int, ...] = ()
    each: bool = False


def fit(observations: Sequence[Observation], bends: Bends) -> StepTerms:
    """The terms with the least squares of relative errors.

    Each curve is made of straight pieces between its knees, and none falls, and rates lie on
    straight lines between some numbers of rows: so the fit is linear with coefficients that are
    not negative, and has one solution. Only the rates of the longest row are searched for, with
    all others as they are; then the others are fitted again.
    """
    seen = [Amounts(one, StepTerms(sizes=bends.sizes)) for one in observations]
    even = [one for one in seen if not one.is_uneven] or seen
    terms = linear(even if bends.each else seen, even, bends)
    uneven = [one for one in seen if one.is_uneven]
    at = sorted({one.rows for one in uneven}) if bends.each else rate_rows(uneven, bends.rows)
    for _ in range(PASSES if uneven and bends.rows else 0):
        terms = replace(terms, reading=longest_rates(terms, uneven, at))
        terms = linear(seen, even, bends, terms)
    return rounded_terms(terms)


class Amounts:
    """What the steps of an observation are made of, on average."""

    def __init__(self, one: Observation, frame: StepTerms) -> None:
        self.batches, self.step_s, self._frame = one.batches, one.step_s, frame
        middle = self.middle = one.batches[len(one.batches) // 2]
        self.rows = frame.readers(middle)
        self.is_uneven = middle.rows * middle.longest > UNEVEN * middle.contexts
        self.is_uneven &= middle.rows > 1

    def all_of(self, name: str) -> F64:
        found = np.array([float(getattr(batch, name)) for batch in self.batches])
        if name != "positions":
            return found
        return np.array([float(self._frame.filled(int(one))) for one in found])

    def within(self, name: str, low: float, high: float) -> float:
        """The part of an amount within a piece, for each step."""
        return float(np.mean(np.clip(self.all_of(name), low, high) - low))


def linear(
    seen: Sequence[Amounts], even: Sequence[Amounts], bends: Bends, before: StepTerms | None = None
) -> StepTerms:
    """All terms but the rates of the longest row, which are those of `before`.

    Rates bend only where there are even contexts."""
    knees = dict(bends.knees)
    if bends.each:
        knees["positions"] = tuple(sorted({one.rows for one in seen}))
    pieces = [
        (name, *ends)
        for name, given in knees.items()
        for ends in spans([knee for knee in given if knee < most_of(seen, name)])
    ]
    at = rate_rows(even, bends.rows)
    columns = [[1.0] * len(seen)]  # fixed_s
    columns += [[one.within(name, low, high) for one in seen] for name, low, high in pieces]
    columns += shared_out(seen, at)
    seconds = np.array([one.step_s for one in seen])
    waited = np.array([0.0 if before is None else waiting(before, one) for one in seen])
    rest = np.maximum(seconds - waited, LEAST * seconds)
    table = np.array(columns).T / seconds[:, None]
    fixed, *found = not_negative_squares(table, rest / seconds).tolist()
    sloped = [(*piece, slope) for piece, slope in zip(pieces, found, strict=False)]
    curves = {name: curve_of([rest for of, *rest in sloped if of == name]) for name in knees}
    longest = NO_RATES if before is None else before.reading
    reading = joined(at, found[len(pieces) :], longest)
    return StepTerms(fixed, **curves, reading=reading, sizes=bends.sizes)


def waiting(terms: StepTerms, one: Amounts) -> float:
    """Seconds of reading beyond those that the tokens take by themselves."""
    middle = one.middle
    alone = terms.reading.at(one.rows)[0] * middle.contexts
    return terms.reading.seconds(one.rows, middle.contexts, middle.longest) - alone


def longest_rates(terms: StepTerms, uneven: Sequence[Amounts], at: Sequence[int]) -> RowRates:
    """The rates with the least sum of relative errors, one after the other."""
    middles = [one.middle for one in uneven]
    seconds = np.array([one.step_s for one in uneven])
    level = np.array([terms.level(one) for one in middles])
    tokens = np.array([terms.reading.at(one.rows)[0] * one.middle.contexts for one in uneven])
    longest = np.array([float(one.longest) for one in middles])
    shares = hats([one.rows for one in uneven], at)
    rates = np.zeros(len(at))
    for number in [*range(len(at))] * ROUNDS_OF_RATES:
        errors: list[float] = []
        for candidate in CANDIDATES:
            rates[number] = candidate
            slowest = ((shares @ rates) * longest).tolist()
            reading = [larger(*pair) for pair in zip(tokens.tolist(), slowest, strict=True)]
            told = level + np.array(reading)
            errors.append(float(np.abs(told / seconds - 1).sum()))
        rates[number] = CANDIDATES[int(np.argmin(errors))]
    rows = sorted({int(one) for one, _, _ in terms.reading.points} | set(at))
    both = [terms.reading.at(one)[0] for one in rows], np.interp(rows, at, rates).tolist()
    return RowRates([list(point) for point in zip(rows, *both, strict=True)])


def rate_rows(seen: Sequence[Amounts], wanted: Sequence[int]) -> list[int]:
    """Those of the wanted numbers of rows that lie among the observed ones, and these as ends."""
    if not seen or not wanted:
        return []
    least, most = min(one.rows for one in seen), max(one.rows for one in seen)
    return sorted({least, most, *(rows for rows in wanted if least < rows < most)})


def hats(rows: Sequence[int], at: Sequence[int]) -> F64:  # [observations, numbers of rows]
    """How each number of rows is shared out between the two of `at` around it."""
    return np.stack([np.interp(rows, at, peak) for peak in np.eye(len(at))], axis=1)


def shared_out(seen: Sequence[Amounts], at: Sequence[int]) -> list[list[float]]:
    """The contexts of each observation, shared out between the numbers of rows around its own."""
    if not at:
        return []
    contexts = np.array([one.all_of("contexts").mean() for one in seen])
    return (hats([one.rows for one in seen], at) * contexts[:, None]).T.tolist()


def joined(at: Sequence[int], rates: Sequence[float], longest: RowRates) -> RowRates:
    """New rates per token, with the rates of the longest row as they are."""
    rows = sorted({*at, *(int(one) for one, _, _ in longest.points)})
    own = np.interp(rows, at, rates).tolist() if at else [0.0] * len(rows)
    return RowRates([[one, rate, longest.at(one)[1]] for one, rate in zip(rows, own, strict=True)])


def rounded_terms(terms: StepTerms) -> StepTerms:
    points = [[rows, *map(rounded, rates)] for rows, *rates in terms.reading.points]
    return replace(terms, fixed_s=rounded(terms.fixed_s), reading=RowRates(points))


def most_of(seen: Sequence[Amounts], name: str) -> float:
    """The largest amount. A curve does not bend beyond it: it would be level from there on."""
    return max(float(one.all_of(name).max()) for one in seen)


def spans(knees: Sequence[float]) -> list[tuple[float, float]]:
    """The pieces of a curve: from 0 to the first knee, and so on; the last one does not end."""
    return list(pairwise((0.0, *knees, np.inf)))


def curve_of(slopes: Sequence[Sequence[float]]) -> TimeCurve:
    """A curve of pieces: where each begins and ends, and its slope."""
    points = [[0.0, 0.0]]
    for low, high, slope in slopes:
        end = high if np.isfinite(high) else max(2 * low, low + 1.0)
        points.append([end, rounded(points[-1][1] + (end - low) * slope)])
    return NOTHING if points[-1][1] == 0 else TimeCurve(points)


def rounded(value: float) -> float:
    return float(f"{value:.{SIGNIFICANT}g}")


def not_negative_squares(table: F64, wanted: F64, most: int = 1000) -> F64:
    """The x >= 0 for which `table @ x` is closest to `wanted`, by the method of Lawson and Hanson.

    Coefficients join one by one, the one that helps most first; those that would become negative
    leave again.
    """
    scale = np.linalg.norm(table, axis=0)
    scale[scale == 0] = 1.0
    scaled = table / scale
    size = scaled.shape[1]
    x, used = np.zeros(size), np.zeros(size, np.bool_)
    for _ in range(most):
        gain = scaled.T @ (wanted - scaled @ x)
        gain[used] = 0.0
        best = int(gain.argmax())
        if gain[best] <= 1e-10 * len(wanted):
            break
        used[best] = True
        while True:
            full = np.zeros(size)
            full[used] = np.linalg.lstsq(scaled[:, used], wanted, rcond=None)[0]
            falling = used & (full <= 0)
            if not falling.any():
                x = full
                break
            share = float((x[falling] / np.maximum(x[falling] - full[falling], 1e-300)).min())
            x = x + share * (full - x)
            used &= x > SMALLEST
            x[~used] = 0.0
            if not used.any():
                break
    return x / scale


def closest(seconds: F64, *amounts: Any) -> tuple[float, ...]:
    """A fixed part and a part for each unit of each amount, none of them negative, with the least
    sum of errors: a few steps that were held up count for little."""
    table = np.stack([np.ones(len(seconds)), *amounts], axis=1).astype(np.float64)
    weight = np.ones(len(seconds))
    found = np.zeros(table.shape[1])
    for _ in range(ROUNDS):
        found = not_negative_squares(table * weight[:, None], seconds * weight)
        weight = np.maximum(np.abs(table @ found - seconds), LEAST_S) ** -0.5
    return tuple(map(rounded, found.tolist()))


def relative_errors(terms: StepTerms, observations: Sequence[Observation]) -> F64:
    """How far off each observation is, as a share of it."""
    told = [np.mean([terms.seconds(batch) for batch in one.batches]) for one in observations]
    seen = np.array([one.step_s for one in observations])
    return np.abs(np.array(told) - seen) / seen


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
