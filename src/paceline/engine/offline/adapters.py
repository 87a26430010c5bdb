"""Adapters of the requests of `LLM`."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, cast

from paceline.core.adapter import LoRARequest
from paceline.core.errors import RequestError
from paceline.engine.adapter_control import LoRARequests, load_question
from paceline.engine.api import GenerationRequest
from paceline.engine.loop.engine import Engine
from paceline.engine.loop.messages import Question


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
