"""`paceline bench latency`: how long one batch takes."""

import sys
from dataclasses import dataclass, field
from typing import Annotated

import typer

from paceline.cli.bench.options import OutputOption, ShapeOptions, deliver, writable
from paceline.cli.main import INTERRUPTED
from paceline.cli.options import EngineOptions, ModelArgument
from paceline.cli.progress import RequestProgress


@dataclass(frozen=True, slots=True)
class LatencyBenchOptions:
    """The model, and the batch.

    Attributes:
        batch_size: Prompts in the batch.
        num_iters: Measured runs.
        num_iters_warmup: Runs before the measured ones.
    """

    argument: ModelArgument = None
    batch_size: Annotated[int, typer.Option(min=1)] = 1
    num_iters: Annotated[int, typer.Option(min=1)] = 5
    num_iters_warmup: Annotated[int, typer.Option(min=0)] = 1
    output: OutputOption = None
    shape: ShapeOptions = field(default_factory=ShapeOptions)
    engine: EngineOptions = field(default_factory=EngineOptions)


def run(options: LatencyBenchOptions) -> int:
    """Measure how long one batch takes in this process.

    Ctrl-C ends the measurement, and the report has the runs that had finished.
    """
    from paceline.bench.report import latency, lines_of_latency, record_of_latency
    from paceline.hub.progress_bar import LoadingStatus
    from paceline.llm import LLM

    writable(options.output)
    model, shape = options.engine.name(options.argument), options.shape
    seed = shape.prompt_seed()
    calls = shape.calls([0.0] * options.batch_size)
    with LoadingStatus(model) as bar:
        llm = LLM(model, progress=bar, **options.engine.settings)
    planned, warmup = options.num_iters, options.num_iters_warmup
    with RequestProgress(planned + warmup, "runs") as progress:
        repeats = latency(llm, calls, shape.vocab_size, planned, warmup, progress.show, seed)
    settings = {"model": model, "batch_size": options.batch_size, **shape.record(seed)}
    settings["engine"] = dict(options.engine.settings)
    if was_interrupted := len(repeats.runs) < planned:
        print(f"interrupted after {len(repeats.runs)} of {planned} runs", file=sys.stderr)
    deliver(lines_of_latency(repeats), record_of_latency(repeats, settings), options.output)
    return INTERRUPTED if was_interrupted else 0
