"""Fits the terms of a profile to observed steps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from paceline.core.arrays import F64
from paceline.simulate.calibration.step_meter import Observation
from paceline.simulate.profile import StepTerms
from paceline.simulate.row_rates import RowRates
from paceline.simulate.time_curve import NOTHING, TimeCurve

Knees = dict[str, tuple[float, ...]]  # by the name of an amount; where a curve may bend
SMALLEST = 1e-15  # a coefficient below it is 0
SIGNIFICANT = 4  # digits of what is written
ROUNDS, LEAST_S = 20, 1e-6  # of a search for the least sum of errors; smaller ones count as this
UNEVEN = 0.1  # contexts are uneven if the longest exceeds the mean by this share


@dataclass(frozen=True, slots=True)
class Bends:
    """Where the terms of one kind of steps may bend.

    knees    of curves, by their amount
    sizes    that steps are filled up to
    rows     at which contexts have a rate of their own
    each     whether every size has a rate of its own for uneven contexts, and a knee
    """

    knees: Knees
    sizes: tuple[int, ...] = ()
    rows: tuple[int, ...] = ()
    each: bool = False


def fit(observations: Sequence[Observation], bends: Bends) -> StepTerms:
    """The terms with the least squares of relative errors.

    Each curve is made of straight pieces between its knees, and none falls, and rates lie on
    straight lines between some numbers of rows: so the fit is linear with coefficients that are
    not negative, and has one solution.
    """
    frame = StepTerms(sizes=bends.sizes)
    seen = [Amounts(one, frame) for one in observations]
    knees = dict(bends.knees)
    if bends.each:
        knees["positions"] = tuple(sorted({one.rows for one in seen}))
    pieces = [
        (name, *ends)
        for name, given in knees.items()
        for ends in spans([knee for knee in given if knee < most_of(seen, name)])
    ]
    rates = [("contexts", rows) for rows in rate_rows(seen, bends.rows)]
    uneven = [one for one in seen if one.is_uneven]
    at = sorted({one.rows for one in uneven}) if bends.each else rate_rows(uneven, bends.rows)
    rates += [("excess", rows) for rows in at]
    columns = [[1.0] * len(seen)]  # fixed_s
    columns += [[one.within(name, low, high) for one in seen] for name, low, high in pieces]
    for name in ("contexts", "excess"):
        columns += shared_out(seen, name, [rows for of, rows in rates if of == name])
    seconds = np.array([one.step_s for one in observations])
    table = np.array(columns).T / seconds[:, None]
    fixed, *found = not_negative_squares(table, np.ones(len(seconds))).tolist()
    sloped = [(*piece, slope) for piece, slope in zip(pieces, found, strict=False)]
    curves = {name: curve_of([rest for of, *rest in sloped if of == name]) for name in knees}
    values = dict(zip(rates, found[len(pieces) :], strict=True))
    return StepTerms(rounded(fixed), **curves, reading=joined(values), sizes=bends.sizes)


class Amounts:
    """What the steps of an observation are made of."""

    def __init__(self, one: Observation, frame: StepTerms) -> None:
        self._batches, self._frame = one.batches, frame
        first = one.batches[0]
        is_filled = first.rows == first.positions
        self.rows = frame.filled(first.rows) if is_filled else first.rows
        self.is_uneven = first.excess * first.rows > UNEVEN * first.contexts

    def all_of(self, name: str) -> F64:
        found = np.array([float(getattr(batch, name)) for batch in self._batches])
        if name != "positions":
            return found
        return np.array([float(self._frame.filled(int(one))) for one in found])

    def within(self, name: str, low: float, high: float) -> float:
        """How much of an amount lies within a piece, for each step."""
        return float(np.mean(np.clip(self.all_of(name), low, high) - low))


def rate_rows(seen: Sequence[Amounts], wanted: Sequence[int]) -> list[int]:
    """Those of the wanted numbers of rows that lie among the observed ones, and these as ends."""
    if not seen or not wanted:
        return []
    least, most = min(one.rows for one in seen), max(one.rows for one in seen)
    return sorted({least, most, *(rows for rows in wanted if least < rows < most)})


def shared_out(seen: Sequence[Amounts], name: str, rows: Sequence[int]) -> list[list[float]]:
    """An amount of each observation, shared out between the two numbers of rows around its own."""
    columns: list[list[float]] = []
    for number in range(len(rows)):
        peak = np.zeros(len(rows))
        peak[number] = 1.0
        share = [float(np.interp(one.rows, rows, peak)) for one in seen]
        amounts = [float(one.all_of(name).mean()) for one in seen]
        columns.append([part * amount for part, amount in zip(share, amounts, strict=True)])
    return columns


def joined(values: Mapping[tuple[str, int], float]) -> RowRates:
    """Both rates at all numbers of rows at which there is one of them."""
    rows = sorted({at for _, at in values})
    columns = [np.zeros(len(rows)), np.zeros(len(rows))]
    for column, name in enumerate(("contexts", "excess")):
        own = [(at, value) for (of, at), value in sorted(values.items()) if of == name]
        if own:
            places, rates = [at for at, _ in own], [value for _, value in own]
            columns[column] = np.interp(rows, places, rates)
    return RowRates(
        [
            [at, rounded(float(one)), rounded(float(two))]
            for at, one, two in zip(rows, *columns, strict=True)
        ]
    )


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
