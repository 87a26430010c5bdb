"""Distributions of lengths in tokens."""

from dataclasses import dataclass
from math import log
from typing import Literal

import numpy as np

from paceline.workloads.prompts import LONGEST, Span

FORMS = "128, 64-256, lognormal:MEDIAN:SIGMA or exponential:MEAN"


@dataclass(frozen=True, slots=True)
class LengthDistribution:
    """Draws lengths: evenly from a span, or from a distribution with a long tail."""

    kind: Literal["even", "lognormal", "exponential"]
    first: float  # the lower end, the median or the mean
    second: float = 0.0  # the upper end or sigma

    @staticmethod
    def parse(text: str) -> "LengthDistribution":
        """Of "128", "64-256", "lognormal:900:0.8" or "exponential:200"."""
        kind, *numbers = text.split(":")
        try:
            values = [float(number) for number in numbers]
            if kind == "lognormal":
                median, sigma = values
                found = LengthDistribution("lognormal", median, sigma)
            elif kind == "exponential":
                (mean,) = values
                found = LengthDistribution("exponential", mean)
            else:
                span = Span.parse(text)
                found = LengthDistribution("even", span.low, span.high)
        except ValueError:
            raise ValueError(f"{text!r} is no length; write {FORMS}") from None
        if not 0 < found.first <= LONGEST or not 0 <= found.second <= LONGEST:
            raise ValueError(f"{text!r} has a number that is not positive; write {FORMS}")
        return found

    def draw(self, random: np.random.Generator) -> int:
        """At least 1."""
        if self.kind == "even":
            return int(random.integers(int(self.first), int(self.second), endpoint=True))
        if self.kind == "lognormal":
            value = random.lognormal(log(self.first), self.second)
        else:
            value = random.exponential(self.first)
        return min(max(round(value), 1), LONGEST)
