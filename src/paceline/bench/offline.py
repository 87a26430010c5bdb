"""Measures an engine in this process: many prompts at once, or one batch several times."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Protocol

from paceline.bench.samples import Spread, rate
from paceline.core.errors import PacelineError
from paceline.engine.api import RequestOutput, SamplingParams
from paceline.workloads.call import Call, token_ids


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


class RunFailed(PacelineError):
    """A prompt of the load failed, so its time means nothing."""


class MeasuredEngine(Protocol):
    """What is measured; see `engine.offline.OfflineEngine`."""

    def generate(
        self, prompts: Any, sampling_params: Any = None, *, progress: bool = True
    ) -> list[RequestOutput]: ...


def throughput(
    llm: MeasuredEngine, calls: Sequence[Call], vocab_size: int, seed: int, progress: bool = False
) -> Run:
    """Run all calls at once, each to its full output length."""
    prompts = [token_ids(call, vocab_size, seed) for call in calls]
    params = [
        SamplingParams(temperature=0.0, max_tokens=call.output_len, ignore_eos=True)
        for call in calls
    ]
    begun = perf_counter()
    outputs = llm.generate(prompts, params, progress=progress)
    seconds = perf_counter() - begun
    if failed := [output.error for output in outputs if output.error]:
        raise RunFailed(f"{len(failed)} of {len(outputs)} prompts failed: {failed[0]}")
    return Run(
        seconds,
        len(outputs),
        sum(output.usage.prompt_tokens for output in outputs),
        sum(output.usage.completion_tokens for output in outputs),
    )


def latency(
    llm: MeasuredEngine,
    calls: Sequence[Call],
    vocab_size: int,
    repeats: int,
    warmup: int,
    report: Callable[[int], None] = lambda _: None,
    seed: int = 0,
) -> Repeats:
    """Run one batch several times, with other prompts each time, from seeds that follow `seed`.

    `report` gets the number of finished runs. After an interrupt the measured runs are returned,
    if there are any.
    """
    runs: list[Run] = []
    try:
        for run in range(warmup + repeats):
            runs.append(throughput(llm, calls, vocab_size, seed + run))
            report(len(runs))
    except KeyboardInterrupt:
        if len(runs) <= warmup:
            raise
    return Repeats(runs[warmup:])
