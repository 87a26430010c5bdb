"""The prompts of one call on an event loop: their adapters, and an output for each."""

import logging
from asyncio import create_task, gather
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, cast

from paceline.core.adapter import LoRARequest
from paceline.core.errors import PacelineError, RequestError, RequestFailed
from paceline.core.events import NO_TIMINGS
from paceline.engine.api import (
    AsyncEngine,
    ChoiceOutput,
    GenerationRequest,
    RequestOutput,
    TextDelta,
    Usage,
)
from paceline.engine.arguments import LoRARequests, load_question
from paceline.engine.loop.engine import Engine
from paceline.engine.loop.messages import Question
from paceline.engine.offline.progress import PromptCounts

log = logging.getLogger(__name__)


class PromptBatch:
    """Each prompt has an output in the end. With `raise_on_error`, the first one that fails raises
    RequestFailed instead."""

    def __init__(self, prompts: int, raise_on_error: bool) -> None:
        self.counts = PromptCounts()
        self._outputs: list[RequestOutput | None] = [None] * prompts
        self._places: dict[str, int] = {}  # of requests that have not ended, by id
        self._raise_on_error = raise_on_error

    @property
    def ended(self) -> bool:
        """Whether every prompt has its output."""
        return not self._places

    @property
    def open(self) -> list[str]:
        """Ids of the requests that have not ended."""
        return list(self._places)

    def opened(self, place: int, request_id: str) -> None:
        """The prompt at `place` is a request now."""
        self._places[request_id] = place

    def refused(self, place: int, output: RequestOutput) -> None:
        """The prompt at `place` never ran. Its id may be the id of another request."""
        self._end(place, output)

    def take(self, done: dict[str, RequestOutput]) -> None:
        """Move the outputs of this batch out of `done`."""
        for request_id in [one for one in done if one in self._places]:
            self._end(self._places.pop(request_id), done.pop(request_id))

    def outputs(self) -> list[RequestOutput]:
        """All outputs, in the order of the prompts. Logs a warning if any failed."""
        found = [output for output in self._outputs if output is not None]
        assert len(found) == len(self._outputs), "some prompts have not ended"
        if self.counts.failed:
            first = next(place for place, output in enumerate(found) if output.error)
            log.warning(
                "%d of %d prompts failed; the error of each output says why, and "
                "raise_on_error=True raises it. %s",
                *(self.counts.failed, len(found), self._failure(first, found[first].error)),
            )
        return found

    def _end(self, place: int, output: RequestOutput) -> None:
        if output.error and self._raise_on_error:
            raise RequestFailed(self._failure(place, output.error))
        self._outputs[place] = output
        self.counts.done += 1
        self.counts.failed += bool(output.error)
        self.counts.read += output.usage.prompt_tokens
        self.counts.written += output.usage.completion_tokens

    def _failure(self, place: int, error: str) -> str:
        return f"prompt {place + 1} of {len(self._outputs)}: {error}"


def refusal(generation: GenerationRequest, name: str, error: PacelineError) -> RequestOutput:
    """The output of a request that was refused. It has the prompt if that was a text."""
    return RequestOutput(
        request_id=name,
        prompt=generation.text if generation.prompt is None else generation.prompt,
        prompt_token_ids=(),
        outputs=(ChoiceOutput(0, "", (), finish_reason="error"),),
        usage=Usage(0, 0, 0),
        timings=NO_TIMINGS,
        error=str(error),
    )


class OutputCollector:
    """Keeps the finished output of a request and ignores its deltas."""

    def __init__(
        self, generation: GenerationRequest, name: str, done: dict[str, RequestOutput]
    ) -> None:
        self._generation, self._name, self._done = generation, name, done

    def put(self, delta: TextDelta) -> None:
        pass

    def close(self, output: RequestOutput) -> None:
        self._done[self._name] = output

    def refuse(self, error: PacelineError) -> None:
        self._done[self._name] = refusal(self._generation, self._name, error)


async def outputs_of(
    engine: AsyncEngine, generations: Sequence[GenerationRequest], at_once: int
) -> list[RequestOutput]:
    """Run prompts, at most `at_once` together, and return their outputs in the same order.

    A prompt that is refused does not stop the others: its output says why. If the caller is
    cancelled, or the engine stops, the open requests are aborted.
    """
    found: dict[int, RequestOutput] = {}
    waiting = iter(enumerate(generations))

    async def run_next() -> None:
        for place, generation in waiting:
            found[place] = await output_of(engine, generation)

    tasks = [create_task(run_next()) for _ in range(min(at_once, len(generations)))]
    try:
        await gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await gather(*tasks, return_exceptions=True)
    return [found[place] for place in range(len(generations))]


async def output_of(engine: AsyncEngine, generation: GenerationRequest) -> RequestOutput:
    try:
        prompt = await engine.tokenized(generation)
        return await engine.generate(generation.ready(prompt)).whole()
    except RequestError as error:
        return refusal(generation, generation.request_id, error)


def load_now(engine: Engine, adapter: LoRARequest, turn: Callable[[], None]) -> None:
    """Load an adapter on the thread of the engine, unless it is loaded. `turn` runs a turn."""
    known = {one["name"]: one["path"] for one in engine.answer(Question("adapters"))}
    if known.get(adapter.lora_name) == adapter.lora_path:
        return
    answer: Future[None] = engine.answer(load_question(adapter.lora_name, adapter.lora_path))
    while not answer.done():
        engine.rest()  # not after the turn that ends the load
        turn()
    answer.result()


def adapted(
    generations: list[GenerationRequest],
    given: LoRARequests,
    load: Callable[[LoRARequest], None],
) -> list[GenerationRequest]:
    """Give each request its adapter, which is loaded if necessary."""
    if given is None:
        return generations
    each = one_adapter_each(given, len(generations))
    for one in dict.fromkeys(one for one in each if one is not None):
        load(one)
    pairs = zip(generations, each, strict=True)
    return [replace(one, adapter=own.lora_name) if own else one for one, own in pairs]


def one_adapter_each(given: Any, prompts: int) -> list[LoRARequest | None]:
    """One adapter for all prompts, or one for each. RequestError if it is something else."""
    if given is None or isinstance(given, LoRARequest):
        return [given] * prompts
    is_list = isinstance(given, list | tuple)
    found = list(cast("Sequence[Any]", given)) if is_list else []
    if not is_list or not all(one is None or isinstance(one, LoRARequest) for one in found):
        raise RequestError(f"lora_request is {given!r:.80}; give a LoRARequest, or a list of them")
    if len(found) != prompts:
        raise RequestError(
            f"there are {prompts} prompts and {len(found)} lora_requests; give one for all "
            "prompts, or one for each"
        )
    return found
