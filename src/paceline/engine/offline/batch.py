"""The prompts of one call on an event loop: some at a time, with an output for each."""

import logging
from asyncio import create_task, gather
from collections.abc import Sequence

from paceline.core.errors import PacelineError, RequestError, RequestFailed
from paceline.core.plan import NO_TIMINGS
from paceline.engine.api import (
    AsyncEngine,
    ChoiceOutput,
    GenerationRequest,
    RequestOutput,
    TextDelta,
    Usage,
)
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

    def refused(self, place: int, generation: GenerationRequest, error: PacelineError) -> None:
        """The prompt at `place` never ran. Its id may be the id of another request."""
        self._end(place, refusal(generation, error))

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


def refusal(generation: GenerationRequest, error: PacelineError) -> RequestOutput:
    """The output of a request that was refused. It has the prompt if that was a text."""
    return RequestOutput(
        request_id=generation.request_id,
        prompt=generation.text if generation.prompt is None else generation.prompt,
        prompt_token_ids=(),
        outputs=(ChoiceOutput(0, "", (), finish_reason="error"),),
        usage=Usage(0, 0, 0),
        timings=NO_TIMINGS,
        error=str(error),
    )


class OutputCollector:
    """Keeps the finished output of a request and ignores its deltas."""

    def __init__(self, generation: GenerationRequest, done: dict[str, RequestOutput]) -> None:
        self._generation, self._done = generation, done

    def put(self, delta: TextDelta) -> None:
        pass

    def close(self, output: RequestOutput) -> None:
        self._done[self._generation.request_id] = output

    def refuse(self, error: PacelineError) -> None:
        self._done[self._generation.request_id] = refusal(self._generation, error)


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
        asked = generation.ready(prompt, generation.request_id, generation.timeout)
        return await engine.generate(asked).whole()
    except RequestError as error:
        return refusal(generation, error)
