"""Fits the terms of a profile to observed steps."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from paceline.core.arrays import F64
from paceline.simulate.calibration.step_meter import Observation
from paceline.simulate.profile import StepTerms
from paceline.simulate.time_curve import NOTHING, TimeCurve

Knees = dict[str, tuple[float, ...]]  # by the name of an amount; where a curve may bend
SMALLEST = 1e-15  # a coefficient below it is 0
SIGNIFICANT = 4  # digits of what is written
ROUNDS, LEAST_S = 20, 1e-6  # of a search for the least sum of errors; smaller ones count as this


def fit(observations: Sequence[Observation], knees: Knees) -> StepTerms:
    """The terms with the least squares of relative errors.

    Each curve is made of straight pieces between its knees, and none falls: so the fit is linear
    with coefficients that are not negative, and has one solution.
    """
    seen = {name: most_of(observations, name) for name in knees}
    pieces = [
        (name, *ends)
        for name, given in knees.items()
        for ends in spans([knee for knee in given if knee < seen[name]])
    ]
    columns = [[1.0] * len(observations)]  # fixed_s
    columns += [
        [mean_amount(one, name, low, high) for one in observations] for name, low, high in pieces
    ]
    seconds = np.array([one.step_s for one in observations])
    table = np.array(columns).T / seconds[:, None]
    found = not_negative_squares(table, np.ones(len(seconds)))
    fixed, *slopes = found.tolist()
    sloped = [(*piece, slope) for piece, slope in zip(pieces, slopes, strict=True)]
    curves = {name: curve_of([rest for of, *rest in sloped if of == name]) for name in knees}
    return StepTerms(rounded(fixed), **curves)


def most_of(observations: Sequence[Observation], name: str) -> float:
    """The largest amount. A curve does not bend beyond it: it would be level from there on."""
    return max(float(getattr(batch, name)) for one in observations for batch in one.batches)


def spans(knees: Sequence[float]) -> list[tuple[float, float]]:
    """The pieces of a curve: from 0 to the first knee, and so on; the last one does not end."""
    return list(pairwise((0.0, *knees, np.inf)))


def mean_amount(one: Observation, name: str, low: float, high: float) -> float:
    """How much of an amount lies within a piece, for each step."""
    amounts = [float(getattr(batch, name)) for batch in one.batches]
    return float(np.mean(np.clip(amounts, low, high) - low))


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
