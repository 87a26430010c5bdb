"""Loading and unloading adapters while an engine runs."""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from paceline.core.adapter import LoRARequest
from paceline.engine.loop.messages import Question, Verb

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


def in_place(question: Question) -> Question:
    """The same load, which may replace an adapter of that name."""
    name, path, _ = json.loads(question.argument)
    return load_question(name, path, in_place=True)


def undoing(question: Question, before: Sequence[Mapping[str, str]]) -> Question:
    """What undoes a load or an unload, given the adapters that were listed before it."""
    name = loaded_name(question)
    path = next((one["path"] for one in before if one["name"] == name), None)
    return Question("unload_adapter", name) if path is None else load_question(name, path, True)


def names_of(listed: Sequence[Mapping[str, str]]) -> set[str]:
    return {one["name"] for one in listed}


def loaded_name(question: Question) -> str:
    """The name in a question about loading or unloading."""
    is_load = question.verb == "load_adapter"
    return json.loads(question.argument)[0] if is_load else question.argument
