"""Results of benchmarks in this process."""

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.bench.samples import Spread, rate


@dataclass(frozen=True, slots=True)
class Run:
    """One call of `generate`."""

    seconds: float
    requests: int
    prompt_tokens: int
    output_tokens: int

    @property
    def requests_per_s(self) -> float:
        return rate(self.requests, self.seconds)

    @property
    def output_tokens_per_s(self) -> float:
        return rate(self.output_tokens, self.seconds)

    @property
    def total_tokens_per_s(self) -> float:
        return rate(self.prompt_tokens + self.output_tokens, self.seconds)


@dataclass(frozen=True, slots=True)
class Repeats:
    """The measured runs of a batch, without the warm-ups."""

    runs: Sequence[Run]

    @property
    def seconds(self) -> Spread:
        spread = Spread.of(run.seconds for run in self.runs)
        assert spread is not None, "a batch was measured at least once"
        return spread
