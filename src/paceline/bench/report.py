"""Measures an engine in this process, and reports runs as lines of text and as JSON."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any, Protocol

from paceline.bench.samples import MS, Outcome, PrefixCacheUse, Sample, ServerRun, Spread, rate
from paceline.core.errors import PacelineError
from paceline.engine.api import RequestOutput, SamplingParams
from paceline.workloads.call import Call, token_ids

COLUMNS = ("mean", "median", "p90", "p99", "max")
LABEL, CELL = 24, 11  # characters
LATE_MS = 50.0  # requests sent later than this make another load than the planned one


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


def lines_of(
    outcome: Outcome, targets_ms: Mapping[str, float], cache: PrefixCacheUse | None = None
) -> list[str]:
    """Counts and rates, and below them a table of latencies."""
    failed = sum(outcome.errors.values())
    lines = [
        row("requests", f"{outcome.completed} succeeded, {failed} failed"),
        row("duration", f"{outcome.duration_s:.2f} s"),
        row("tokens", f"{outcome.prompt_tokens:,} prompt, {outcome.output_tokens:,} output"),
        row("throughput", rates(outcome)),
    ]
    if cache is not None:
        found = f"{cache.hits:,} of {cache.queries:,} prompt tokens"
        lines.append(row("prefix cache", f"{cache.hit_rate:.1%} hits: {found}"))
    if outcome.goodput is not None:
        within = ", ".join(f"{name} {limit:g} ms" for name, limit in targets_ms.items())
        lines.append(row("goodput", f"{outcome.goodput:.2f} requests/s within {within}"))
    for kind, count in sorted(outcome.errors.items()):
        first = outcome.messages.get(kind)
        lines.append(row(f"  {kind}", f"{count}, the first: {first}" if first else f"{count}"))
    lines += ["", row("milliseconds", "".join(name.rjust(CELL) for name in COLUMNS))]
    lines += table(outcome)
    behind = outcome.behind_ms
    if behind is not None and behind.p99 > LATE_MS:
        late = f"requests were sent up to {behind.most:.0f} ms late: raise --max-concurrency, or"
        lines += ["", f"{late} lower --request-rate"]
    return lines


def table(outcome: Outcome) -> list[str]:
    spreads = {
        "time to first token": outcome.ttft_ms,
        "time per output token": outcome.tpot_ms,
        "inter-token latency": outcome.itl_ms,
        "end-to-end latency": outcome.e2e_ms,
    }
    return [row(name, numbers(spread)) for name, spread in spreads.items()]


def lines_of_throughput(run: Run) -> list[str]:
    return [
        row("requests", f"{run.requests} in {run.seconds:.2f} s"),
        row("tokens", f"{run.prompt_tokens:,} prompt, {run.output_tokens:,} output"),
        row("throughput", rates(run)),
    ]


def lines_of_latency(repeats: Repeats) -> list[str]:
    spread, run = repeats.seconds, repeats.runs[0]
    return [
        row("batch", f"{run.requests} requests, {len(repeats.runs)} times"),
        row("tokens", f"{run.prompt_tokens:,} prompt, {run.output_tokens:,} output"),
        "",
        row("seconds", "".join(name.rjust(CELL) for name in COLUMNS)),
        row("one batch", numbers(spread, digits=3)),
    ]


def row(name: str, text: str) -> str:
    return f"{name.ljust(LABEL)}{text}"


def numbers(spread: Spread | None, digits: int = 1) -> str:
    if spread is None:
        return "-".rjust(CELL) * len(COLUMNS)
    values = (spread.mean, spread.median, spread.p90, spread.p99, spread.most)
    return "".join(f"{value:{CELL}.{digits}f}" for value in values)


def rates(done: Outcome | Run) -> str:
    return (
        f"{done.requests_per_s:.2f} requests/s, {done.output_tokens_per_s:.1f} output tokens/s, "
        f"{done.total_tokens_per_s:.1f} tokens/s"
    )


# -- JSON -------------------------------------------------------------------


def record(outcome: Outcome, run: ServerRun, settings: Mapping[str, Any]) -> Any:
    """Everything about a run of a server."""
    samples, cache = run.samples, run.cache
    return {
        "kind": "serve",
        "settings": dict(settings),
        **asdict(outcome),
        **rates_of(outcome),
        "prefix_cache": cache and {**asdict(cache), "hit_rate": cache.hit_rate},
        "requests": [of_sample(sample) for sample in samples],
    }


def record_of_throughput(run: Run, settings: Mapping[str, Any]) -> Any:
    return {
        "kind": "throughput",
        "settings": dict(settings),
        **asdict(run),
        **rates_of(run),
    }


def record_of_latency(repeats: Repeats, settings: Mapping[str, Any]) -> Any:
    return {
        "kind": "latency",
        "settings": dict(settings),
        "seconds": asdict(repeats.seconds),
        "runs": [asdict(run) for run in repeats.runs],
    }


def rates_of(done: Outcome | Run) -> dict[str, float]:
    names = ("requests_per_s", "output_tokens_per_s", "total_tokens_per_s")
    return {name: getattr(done, name) for name in names}


def of_sample(sample: Sample) -> dict[str, Any]:
    tpot, well = sample.tpot_s, not sample.error
    return {
        "sent_s": sample.sent_s,
        "ttft_ms": sample.ttft_s * MS if sample.pieces_s else None,
        "tpot_ms": tpot * MS if well and tpot is not None else None,
        "e2e_ms": sample.e2e_s * MS,
        "prompt_tokens": sample.prompt_tokens,
        "output_tokens": sample.output_tokens,
        "error": sample.error or None,
    }
