"""`paceline bench throughput`: tokens per second of many prompts at once."""

import sys
from dataclasses import dataclass, field
from typing import Annotated

import typer

from paceline.cli.bench.options import OutputOption, ShapeOptions, deliver, writable
from paceline.cli.main import INTERRUPTED
from paceline.cli.options import EngineOptions, ModelArgument


@dataclass(frozen=True, slots=True)
class ThroughputBenchOptions:
    """The model, and the load.

    Attributes:
        num_prompts: Number of prompts, all at once.
    """

    argument: ModelArgument = None
    num_prompts: Annotated[int, typer.Option(min=1)] = 32
    output: OutputOption = None
    shape: ShapeOptions = field(default_factory=ShapeOptions)
    engine: EngineOptions = field(default_factory=EngineOptions)


def run(options: ThroughputBenchOptions) -> int:
    """Measure the tokens per second of many prompts at once in this process."""
    from paceline.bench.report import lines_of_throughput, record_of_throughput, throughput
    from paceline.hub.progress_bar import LoadingStatus
    from paceline.llm import LLM

    writable(options.output)
    model, shape = options.engine.name(options.argument), options.shape
    seed = shape.prompt_seed()
    calls = shape.calls([0.0] * options.num_prompts)
    with LoadingStatus(model) as bar:
        llm = LLM(model, progress=bar, **options.engine.settings)
    try:
        done = throughput(llm, calls, shape.vocab_size, seed, sys.stderr.isatty())
    except KeyboardInterrupt:
        advice = "a smaller --num-prompts takes less time"
        print(f"interrupted: only a complete run is measured; {advice}", file=sys.stderr)
        return INTERRUPTED
    settings = {"model": model, "num_prompts": options.num_prompts, **shape.record(seed)}
    settings["engine"] = dict(options.engine.settings)
    deliver(lines_of_throughput(done), record_of_throughput(done, settings), options.output)
    return 0
