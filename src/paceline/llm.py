"""`LLM` and `AsyncLLM`: a model in a script or in an event loop, without a server."""

import sys
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Unpack

from paceline.core.system.start import FACTORY, START, begin_early
from paceline.engine import streaming
from paceline.engine.api import GenerationRequest, RequestOutput
from paceline.engine.components import Factory, factory_named
from paceline.engine.embeddings import (
    Comparison,
    Embedding,
    PoolingOutput,
    Score,
    embeddings,
    pooled,
)
from paceline.engine.loop.messages import Arrivals, Mode
from paceline.engine.offline.batch import outputs_of
from paceline.engine.offline.pooling import PoolingEngine
from paceline.engine.prompts import Prompt, as_generation, several
from paceline.engine.transport.thread import ThreadCore
from paceline.hub.catalogue import DEFAULT
from paceline.wiring.recording import begin_files
from paceline.wiring.setting_fields import LLMSettings
from paceline.wiring.settings import ENGINE_SETTINGS, for_batches
from paceline.wiring.vllm.settings import translated

LLM_ARGUMENTS = {*ENGINE_SETTINGS, "progress"}


def imported() -> Factory:
    """What builds an engine."""
    with START.phase("imports"):
        return factory_named(FACTORY)


@contextmanager
def status(model: str, settings: dict[str, Any]) -> Generator[dict[str, Any]]:
    """Show on a terminal what the start is waiting for, unless the caller shows its progress."""
    if "progress" in settings or not sys.stderr.isatty() or find_spec("rich") is None:
        yield settings
        return
    # Only a terminal needs rich, so it is imported for a terminal only.
    with import_module("paceline.hub.progress_bar").LoadingStatus(model) as shown:
        yield {**settings, "progress": shown}


Weights = str | Path | Mapping[str, Any]  # a folder, a file, or tensors by name


def file_of(weights: Weights) -> AbstractContextManager[str]:
    """The path of weights; tensors are in shared memory meanwhile."""
    if isinstance(weights, Mapping):
        return import_module("paceline.wiring.resident_model").in_shared_memory(weights)
    return nullcontext(str(weights))


class LLM(PoolingEngine):
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

    def __init__(self, model: str = DEFAULT, **settings: Unpack[LLMSettings]) -> None:
        model, given = translated(model, settings, LLM_ARGUMENTS)
        begin_files(given)
        begin_early(model, given)
        with status(model, for_batches(given)) as chosen:
            super().__init__(model, imported(), **chosen)

    def update_weights(
        self, weights: Weights = "", *, version: str = "", mode: Mode = "wait"
    ) -> str:
        """Use other weights from now on: those of a folder or a .safetensors file, or tensors by
        the names of the checkpoint; without any, those of the start. Returns their version.

        They must be of the same model in the same format. RequestError says what does not fit; the
        weights in use stay then. No KV of other weights is read afterwards. `version` names them;
        without one, it is a digest. Open requests, from `enqueue`, finish first (wait), or go on
        with the new weights and are computed again (keep), or end (abort).
        """
        with file_of(weights) as path:
            return self._update_weights(path, version, mode)


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

    def __init__(self, model: str = DEFAULT, **settings: Unpack[LLMSettings]) -> None:
        model, given = translated(model, settings, LLM_ARGUMENTS)
        begin_files(given)
        begin_early(model, given)
        with status(model, given) as chosen:
            components = imported()(model, **chosen)
        engine = components.engine()
        super().__init__(ThreadCore(engine), components.frontend(engine))

    async def update_weights(
        self, weights: Weights = "", *, version: str = "", mode: Mode = "wait"
    ) -> str:
        """Use other weights from now on; see `LLM.update_weights`."""
        with file_of(weights) as path:
            return await self.upkeep.update_weights(path, version, mode)

    async def sleep(
        self, level: int = 1, mode: Mode = "abort", *, arrivals: Arrivals = "refuse"
    ) -> None:
        """Release memory until `wake_up`; see `LLM.sleep`. Requests that arrive meanwhile are
        refused, or wait."""
        await self.upkeep.sleep(level, mode, arrivals)

    async def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """Take memory again: all of it, or that of the tags "weights" and "kv_cache"."""
        await self.upkeep.wake_up(tags)

    async def is_sleeping(self) -> bool:
        """Is memory of any tag released?"""
        return await self.upkeep.is_sleeping()

    async def embed(
        self,
        prompts: Prompt | Iterable[Prompt],
        *,
        dimensions: int | None = None,
        normalize: bool | None = None,
    ) -> list[PoolingOutput[Embedding]]:
        """Turn each prompt into a vector, as the files of the model say, or the setting `pooling`.

        `dimensions` keeps the first numbers of each vector. `normalize` says whether vectors have
        length 1; None: as the model's files say. A prompt that cannot run does not stop the others:
        its output has an `error`.

        ```py
        outputs = await llm.embed(["one text", "another"])
        vectors = [output.outputs.embedding for output in outputs]
        ```
        """
        scaled = self.rules.embedding.normalize if normalize is None else normalize
        asked = [as_generation(prompt) for prompt in several(prompts)]
        return embeddings(await self._pooled(asked), scaled, dimensions)

    async def score(
        self, texts: str | Sequence[str], others: str | Sequence[str]
    ) -> list[PoolingOutput[Score]]:
        """Say how well texts match: one with each of the others, or each with its counterpart.

        The score is that of the model if it is a classifier of two texts, and otherwise the cosine
        of the embeddings.
        """
        compared = Comparison(texts, others, self.get_tokenizer(), self.rules.embedding)
        return compared.scores(await self._pooled(compared.prompts))

    async def _pooled(self, prompts: Iterable[GenerationRequest]) -> list[RequestOutput]:
        """No more at once than the queue takes, and enough to keep the model busy."""
        at_once = max(min(2 * self._frontend.max_num_seqs, self._capacity.max_num_queued_reqs), 1)
        asked = [pooled(prompt, self.rules.embedding) for prompt in prompts]
        return await outputs_of(self, asked, at_once)
