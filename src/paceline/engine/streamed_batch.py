"""The prompts of one call on an event loop: some at a time, with an output for each."""

from asyncio import create_task, gather
from collections.abc import Sequence

from paceline.core.errors import RequestError
from paceline.engine.api import AsyncEngine, GenerationRequest, RequestOutput
from paceline.engine.prompt_batch import refusal


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
