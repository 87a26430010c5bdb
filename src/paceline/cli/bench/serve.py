"""`paceline bench serve`: latency and throughput of a server under load."""

import asyncio
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf, isinf
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import typer

from paceline.bench.report import lines_of, record
from paceline.bench.samples import Outcome, Sample, ServerRun, targets_of
from paceline.cli.bench.options import OutputOption, ShapeOptions, deliver, writable
from paceline.cli.command import WrongOption
from paceline.cli.main import INTERRUPTED
from paceline.cli.options import KeyOption, root
from paceline.cli.progress import RequestProgress
from paceline.workloads.call import Call, arrival_times
from paceline.workloads.traces import read

TRACE, WHEN, REPORT = "trace", "arrivals", "report"


@dataclass(frozen=True, slots=True)
class Timing:
    """When requests arrive: at a rate, or as in a trace.

    Attributes:
        num_prompts: Number of requests.
        request_rate (R): Mean requests per second; inf: all at once.
        burstiness: 1: Poisson arrivals; below 1: in bursts; above 1: more evenly.
        max_concurrency: Maximum number of open requests; 0: no limit.
        warmup: Requests before the measurement, one by one.
        trace (FILE): Take arrivals and lengths of the first --num-prompts requests of this file:
            Azure's CSV, Mooncake's JSON lines, or JSON lines with input_toks, output_toks and
            arrival_time_ns.
        trace_speed: Speed-up of the arrivals of the trace.
        max_input_len: Cut longer prompts of the trace.
        max_output_len: Cut longer outputs of the trace.
    """

    num_prompts: Annotated[int, typer.Option(min=1, rich_help_panel=WHEN)] = 100
    request_rate: Annotated[float, typer.Option(rich_help_panel=WHEN)] = inf
    burstiness: Annotated[float, typer.Option(rich_help_panel=WHEN)] = 1.0
    max_concurrency: Annotated[int, typer.Option(min=0, rich_help_panel=WHEN)] = 0
    warmup: Annotated[int, typer.Option(min=0, rich_help_panel=WHEN)] = 1
    trace: Annotated[Path | None, typer.Option(rich_help_panel=TRACE)] = None
    trace_speed: Annotated[float, typer.Option(rich_help_panel=TRACE)] = 1.0
    max_input_len: Annotated[int, typer.Option(min=1, rich_help_panel=TRACE)] = 2**20
    max_output_len: Annotated[int, typer.Option(min=1, rich_help_panel=TRACE)] = 2**20

    def __post_init__(self) -> None:
        for name in ("request_rate", "burstiness", "trace_speed"):
            if not getattr(self, name) > 0:
                raise WrongOption(f"--{name.replace('_', '-')} must be positive")
        if isinf(self.burstiness):
            raise WrongOption("--burstiness must be finite")

    def calls(self, shape: ShapeOptions) -> list[Call]:
        if self.trace is None:
            random = np.random.default_rng([shape.load_seed, 1])  # not that of the lengths
            times = arrival_times(self.num_prompts, self.request_rate, self.burstiness, random)
            return shape.calls(times.tolist())
        found = read(self.trace, self.num_prompts)
        cut = [call.cut(self.max_input_len, self.max_output_len) for call in found]
        return [replace(call, at_s=call.at_s / self.trace_speed) for call in cut]


@dataclass(frozen=True, slots=True)
class ServeBenchOptions:
    """The server, the load, and the report.

    Attributes:
        url (URL): URL of an OpenAI-compatible server.
        model (NAME): Name of the model; default: the first that the server lists.
        endpoint: completions: prompts of exact length; chat: messages of about that length.
        ignore_eos: Generate every output to its full length.
        timeout (S): Seconds to wait for the next byte of a response.
        further (NAME:MS): More targets of --goodput.
        goodput (NAME:MS): Count the requests within targets, for example ttft:200 tpot:50 e2e:3000.
        plot (FILE): Draw the run: .svg, .png or .html. Needs the extra `plot`.
    """

    url: str = "http://127.0.0.1:8000"
    api_key: KeyOption = None
    model: str | None = None
    endpoint: Literal["completions", "chat"] = "completions"
    ignore_eos: bool = True
    timeout: Annotated[float, typer.Option(min=0)] = 600.0
    timing: Timing = field(default_factory=Timing)
    shape: ShapeOptions = field(default_factory=ShapeOptions)
    further: Annotated[list[str] | None, typer.Argument()] = None
    goodput: Annotated[list[str], typer.Option(rich_help_panel=REPORT)] = field(
        default_factory=list[str]
    )
    output: OutputOption = None
    plot: Annotated[Path | None, typer.Option(rich_help_panel=REPORT)] = None

    def __post_init__(self) -> None:
        if self.further and not self.goodput:
            raise WrongOption(f"{self.further[0]!r} is not expected here")

    @property
    def targets_ms(self) -> dict[str, float]:
        return targets_of([*self.goodput, *(self.further or ())])


def run(options: ServeBenchOptions) -> int:
    """Send requests to a server and measure latency and throughput.

    The report has the time to first token, the time per output token, the inter-token latency
    and the end-to-end latency (mean, median, 90th and 99th percentile), throughput, goodput
    against targets, the hit rate of the server's prefix cache, and errors by kind. The exit status
    is 1 if no request succeeded. Ctrl-C ends the measurement, and the report has the requests that
    had finished.
    """
    targets = options.targets_ms
    writable(options.output, options.plot)
    plotted = plotter(options.plot)
    done, settings = asyncio.run(measured(options))
    samples = done.samples
    outcome = Outcome.of(samples, targets)
    lines = lines_of(outcome, targets, done.cache)
    planned = settings["num_prompts"]
    if was_interrupted := len(samples) < planned:
        print(f"interrupted after {len(samples)} of {planned} requests", file=sys.stderr)
    deliver(lines, record(outcome, done, settings), options.output)
    plotted(samples, lines)
    return INTERRUPTED if was_interrupted else int(not outcome.completed)


def plotter(path: Path | None) -> Callable[[Sequence[Sample], Sequence[str]], None]:
    """The function that draws a run. Fails before the measurement if it cannot draw."""
    if path is None:
        return lambda _samples, _lines: None
    from paceline.bench.plot import check_kind, write

    check_kind(path)
    return partial(write, path)


async def measured(options: ServeBenchOptions) -> tuple[ServerRun, dict[str, Any]]:
    """The run, and its settings."""
    from paceline.bench.client import Load, Target, client
    from paceline.bench.client import run as load_server
    from paceline.cli.http_client import first_model

    timing, shape = options.timing, options.shape
    seed = shape.prompt_seed()
    load = Load(timing.calls(shape), timing.max_concurrency, timing.warmup)
    async with client(root(options.url), options.api_key, options.timeout) as http:
        model = options.model or await first_model(http)
        target = Target(model, options.endpoint, shape.vocab_size, seed, options.ignore_eos)
        with RequestProgress(len(load.calls)) as progress:
            done = await load_server(http, target, load, progress.show)
    rate = timing.request_rate
    return done, {
        "url": options.url,
        "model": model,
        "endpoint": options.endpoint,
        "num_prompts": len(load.calls),
        "request_rate": "inf" if rate == inf else rate,
        "burstiness": timing.burstiness,
        "max_concurrency": timing.max_concurrency,
        "trace": str(timing.trace) if timing.trace else None,
        "goodput_ms": options.targets_ms,
        **shape.record(seed),
    }
