"""Loading and unloading adapters while an engine runs."""

import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

from paceline.core.adapter import LoRARequest
from paceline.core.errors import RequestError
from paceline.engine.core.messages import Question, Verb

LoRARequests = LoRARequest | Sequence[LoRARequest | None] | None


class AdapterControl:
    """The adapters of an engine. Every front end of the engine sees the same ones."""

    def __init__(self, ask: Callable[[Verb, str], Awaitable[Any]]) -> None:
        self._ask = ask

    async def listed(self) -> dict[str, str]:
        """The folders of all adapters, by name."""
        return {one["name"]: one["path"] for one in await self._ask("adapters", "")}

    async def load(self, name: str, path: str, in_place: bool = False) -> None:
        """Serve an adapter. Requests run on while its files are read.

        Raises RequestError if its files are wrong, or if the name is taken and not `in_place`.
        """
        question = load_question(name, path, in_place)
        await self._ask(question.verb, question.argument)

    async def unload(self, name: str) -> None:
        """Refuse requests that name an adapter from now on; open ones finish.

        Raises RequestError if it is not loaded.
        """
        await self._ask("unload_adapter", name)


def load_question(name: str, path: str, in_place: bool = False) -> Question:
    return Question("load_adapter", json.dumps([name, path, in_place]))


def loaded_name(question: Question) -> str:
    """The name in a question about loading or unloading."""
    is_load = question.verb == "load_adapter"
    return json.loads(question.argument)[0] if is_load else question.argument


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
