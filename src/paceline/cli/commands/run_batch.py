"""`paceline run-batch`: answer a file of requests."""

import asyncio
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from paceline.cli.command import WrongOption
from paceline.cli.main import INTERRUPTED
from paceline.cli.options import EngineOptions
from paceline.cli.progress import RequestProgress
from paceline.server.batches.counts import Counts

BESIDE = 2  # open requests for each that can run, so that one is always ready


@dataclass(frozen=True, slots=True)
class RunBatchOptions:
    """The files and the model.

    Attributes:
        input (FILE): Requests, one JSON object per line.
        output (FILE): Responses; an existing file is continued.
        max_concurrency (N): Maximum number of open requests; 0: twice max_num_seqs.
        served_model_name (NAME): Another name of the model, as requests use it; may be repeated.
    """

    input: Annotated[Path, typer.Option("--input", "-i")]
    output: Annotated[Path, typer.Option("--output", "-o")]
    max_concurrency: Annotated[int, typer.Option(min=0)] = 0
    served_model_name: list[str] = field(default_factory=list[str])
    engine: EngineOptions = field(default_factory=EngineOptions)

    def __post_init__(self) -> None:
        if not self.input.is_file():
            raise WrongOption(f"--input {self.input} is not a file")
        if self.output.exists() and self.input.samefile(self.output):
            raise WrongOption("--input and --output are the same file")


def run(options: RunBatchOptions) -> int:
    """Answer a file of requests in the format of the OpenAI Batch API.

    A line of the input has custom_id, method (POST), url (/v1/chat/completions, /v1/completions,
    /v1/responses, /v1/embeddings, /v1/score or /v1/rerank) and body. A line of the output is the
    response to one of them, in the order in which they finish. An invalid line gets an error; the
    others are answered. An interrupted run can be repeated: requests that have a response in the
    output are skipped.
    """
    counts = Counts()
    try:
        asyncio.run(answer(options, counts))
    except KeyboardInterrupt:
        advice = "run the same command again to answer the rest"
        print(f"interrupted: {counts}; {advice}", file=sys.stderr)
        return INTERRUPTED
    print(counts, file=sys.stderr)
    return 0


async def answer(options: RunBatchOptions, counts: Counts) -> None:
    import httpx

    from paceline.engine.streaming import StreamingEngine
    from paceline.hub.progress_bar import LoadingStatus
    from paceline.server.app import create_app
    from paceline.server.batches.batch_file import BatchRun, Results, count_lines, entries
    from paceline.server.settings import ServerSettings
    from paceline.wiring.assembly import build
    from paceline.wiring.settings import for_batches

    model = options.engine.name()
    with Results(options.output) as results:
        with LoadingStatus(model) as bar:
            components = build(model, progress=bar, **for_batches(options.engine.settings))
        config = components.scheduler.config
        choices = ServerSettings(aliases=tuple(options.served_model_name))
        engine = StreamingEngine.of(components)
        app = create_app(engine, model, components.tokenizer, choices)
        # The server handles each body as it would over a network.
        within = httpx.ASGITransport(app, raise_app_exceptions=False)
        width = options.max_concurrency or BESIDE * config.step.max_num_seqs
        width = min(width, config.queue.max_num_queued_reqs)

        def report() -> None:
            progress.show(counts.done, counts.refused + counts.bad, counts.skipped)

        try:
            async with httpx.AsyncClient(
                transport=within, base_url="http://batch", timeout=None
            ) as http:
                with RequestProgress(count_lines(options.input)) as progress:
                    batch = BatchRun(http, results, width, counts, report)
                    await batch.run(entries(options.input))
        finally:
            await engine.shutdown()
