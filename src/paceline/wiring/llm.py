"""`LLM` and `AsyncLLM`: a model in a script or in an event loop, without a server."""

import sys
from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from paceline.engine import offline, streaming
from paceline.engine.core.components import factory_named
from paceline.engine.core.thread import ThreadCore
from paceline.hub.catalogue import DEFAULT
from paceline.wiring.recording import check_record
from paceline.wiring.settings import for_batches

# By name: importing it takes seconds and memory that a front end does not need.
FACTORY = "paceline.wiring.assembly:build"


@contextmanager
def status(model: str, settings: dict[str, Any]) -> Generator[dict[str, Any]]:
    """Show on a terminal what the start is waiting for, unless the caller shows its progress."""
    if "progress" in settings or not sys.stderr.isatty() or find_spec("rich") is None:
        yield settings
        return
    # Only a terminal needs rich, so it is imported for a terminal only.
    with import_module("paceline.hub.loading_status").LoadingStatus(model) as shown:
        yield {**settings, "progress": shown}


class LLM(offline.OfflineEngine):
    """A model to call from a script.

    `model` is a name that `paceline pull` knows, a `.gguf` file, a folder with safetensors, or a
    repository on Hugging Face. Settings are given by name, as `paceline serve` takes them:
    `max_num_seqs=64`. An unknown name raises ConfigError. The policy is `longest` unless one is
    given.

    ```py
    from paceline import LLM, SamplingParams

    with LLM("smollm2") as llm:
        for output in llm.generate(["The capital of France is"], SamplingParams(max_tokens=8)):
            print(output.outputs[0].text)
    ```

    Outputs have the order of the prompts. A prompt that cannot run does not stop the others: its
    output has the finish reason "error", and `error` says why.

    `close`, or the end of a `with` block, releases the model. Every call after that raises
    EngineFailed.
    """

    def __init__(self, model: str = DEFAULT, **settings: Any) -> None:
        check_record(settings)
        with status(model, for_batches(settings)) as chosen:
            super().__init__(model, factory_named(FACTORY), **chosen)


class AsyncLLM(streaming.StreamingEngine):
    """A model for an event loop, with the step loop on a thread of its own.

    It takes the same model names and settings as `LLM`.

    ```py
    from paceline import AsyncLLM, SamplingParams

    async with AsyncLLM("smollm2") as llm:
        async for piece in llm.generate("Once upon a time", SamplingParams(max_tokens=40)):
            print(piece.text, end="", flush=True)
    ```
    """

    def __init__(self, model: str = DEFAULT, **settings: Any) -> None:
        check_record(settings)
        with status(model, settings) as chosen:
            components = factory_named(FACTORY)(model, **chosen)
        engine = components.engine()
        super().__init__(ThreadCore(engine), components.frontend(engine))
