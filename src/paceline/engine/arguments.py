"""Keyword arguments of `generate` and `chat` under the names that vLLM uses, and adapters."""

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, Literal, TypedDict

from paceline.core.adapter import LoRARequest
from paceline.core.constraint import Constraint
from paceline.core.errors import RequestError
from paceline.core.sampling import LogitsProcessor, ServiceLevel
from paceline.engine.loop.messages import Arrivals, Mode, Question, Verb
from paceline.engine.params import UNSUPPORTED, SamplingParams, unknown_argument

LoRARequests = LoRARequest | Sequence[LoRARequest | None] | None
SAMPLING = [one.name for one in fields(SamplingParams)]
TEMPLATE = [
    "tools",
    "variables",
    "chat_template",
    "add_generation_prompt",
    "continue_final_message",
]


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


class ModelControl:
    """The weights and the memory of an engine, or of several."""

    def __init__(self, ask: Callable[[Verb, str], Awaitable[Any]]) -> None:
        self._ask = ask

    async def update_weights(self, path: str = "", version: str = "", mode: Mode = "wait") -> str:
        """Use other weights; returns their version. See `LLM.update_weights`."""
        asked = {"path": path, "version": version, "mode": mode}
        return await self._ask("update_weights", json.dumps(asked))

    async def weight_version(self) -> str:
        """The version of the weights in use."""
        return await self._ask("weight_version", "")

    async def sleep(
        self, level: int = 1, mode: Mode = "abort", arrivals: Arrivals = "refuse"
    ) -> None:
        """Release memory; see `LLM.sleep`. Requests that arrive meanwhile are refused, or wait."""
        asked = {"level": level, "mode": mode, "arrivals": arrivals}
        await self._ask("sleep", json.dumps(asked))

    async def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """Take memory again, of some tags or of all."""
        await self._ask("wake_up", json.dumps({"tags": None if tags is None else [*tags]}))

    async def is_sleeping(self) -> bool:
        return await self._ask("is_sleeping", "")


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


class SamplingFields(TypedDict, total=False):
    """The fields of `SamplingParams` as keyword arguments: `generate(prompt, max_tokens=8)`.

    n, best_of, use_beam_search, beam_width, length_penalty, early_stopping; temperature, top_p,
    top_k, min_p, presence_penalty, frequency_penalty, repetition_penalty, seed; max_tokens,
    min_tokens, stop, stop_token_ids, ignore_eos; logprobs, prompt_logprobs, logit_bias,
    include_stop_str_in_output, skip_special_tokens, bad_token_ids, allowed_token_ids;
    structured_outputs, logprob_token_ids, bad_words; detokenize, spaces_between_special_tokens,
    truncate_prompt_tokens, logits_processors, guided_decoding, slo.
    """

    n: int
    best_of: int | None
    use_beam_search: bool
    beam_width: int
    length_penalty: float
    early_stopping: bool | Literal["never"]
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    seed: int | None
    max_tokens: int | None
    min_tokens: int
    stop: str | Iterable[str]
    stop_token_ids: Iterable[int]
    ignore_eos: bool
    logprobs: int | None
    prompt_logprobs: int | None
    logit_bias: Mapping[int, float] | None
    include_stop_str_in_output: bool
    skip_special_tokens: bool
    bad_token_ids: Iterable[int]
    allowed_token_ids: Iterable[int] | None
    structured_outputs: Constraint | Mapping[str, Any] | None
    logprob_token_ids: Iterable[int] | None
    bad_words: str | Iterable[str]
    detokenize: bool
    spaces_between_special_tokens: bool
    truncate_prompt_tokens: int | None
    logits_processors: Iterable[LogitsProcessor] | None
    guided_decoding: Any
    slo: ServiceLevel | Mapping[str, float] | None


class GenerateFields(SamplingFields, total=False):
    """Keyword arguments of `LLM.generate`: fields of `SamplingParams`, and vLLM's own."""

    use_tqdm: bool  # the same as `progress`
    prompt_token_ids: Sequence[int] | Sequence[Sequence[int]] | None  # instead of prompts
    priority: Sequence[int] | None  # one for each prompt; smaller goes first
    lora_request: LoRARequests  # one for all prompts, or one for each


class TemplateFields(SamplingFields, total=False):
    """Keyword arguments of `AsyncLLM.chat`: fields of `SamplingParams`, and of the template."""

    tools: Sequence[Mapping[str, Any]] | None
    variables: Mapping[str, Any] | None
    chat_template_kwargs: Mapping[str, Any] | None  # the same as `variables`
    chat_template: str | None
    add_generation_prompt: bool
    continue_final_message: bool


class ChatFields(GenerateFields, TemplateFields, total=False):
    """Keyword arguments of `LLM.chat`."""


def split(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arguments of `chat` that are fields of the template, and the others."""
    rest = dict(given)
    if (alias := rest.pop("chat_template_kwargs", None)) is not None:
        if rest.get("variables") is not None:
            raise RequestError("chat_template_kwargs and variables are the same; give one of them")
        rest["variables"] = alias
    return {name: rest.pop(name) for name in TEMPLATE if name in rest}, rest


def sampling_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """Check that arguments are fields of `SamplingParams`. None for one that is not supported is
    left out."""
    found = {name: value for name, value in given.items() if name in SAMPLING}
    for name, value in given.items():
        if name in found or (name in UNSUPPORTED and value is None):
            continue
        raise unknown_argument(name, [*SAMPLING, *TEMPLATE])
    return found
