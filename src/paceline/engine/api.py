"""Messages between an engine and its callers, and the protocol of an engine."""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import Any, Literal, Protocol

from paceline.core.errors import PromptTooLong, QueueFull, RequestError
from paceline.core.events import Timings, message
from paceline.core.multimodal import ImageInput
from paceline.engine.arguments import AdapterControl, ModelControl
from paceline.engine.frontend.outputs import (
    Alternative,
    ChoiceOutput,
    FinishReason,
    PromptLogprob,
    PromptLogprobs,
    RequestOutput,
    TextDelta,
    TokenLogprob,
    Usage,
)
from paceline.engine.loop.figures import Report
from paceline.engine.loop.messages import Arrivals, Capacity, EngineFailed, EngineUnavailable, Mode
from paceline.engine.params import SamplingParams
from paceline.engine.sampling_rules import MODEL_DEFAULTS, SamplingRules
from paceline.text.chat_messages import images_of

__all__ = [
    "Alternative",
    "Arrivals",
    "AsyncEngine",
    "ChoiceOutput",
    "EngineFailed",
    "EngineUnavailable",
    "FinishReason",
    "GenerationRequest",
    "Mode",
    "PromptLogprob",
    "PromptLogprobs",
    "PromptTooLong",
    "QueueFull",
    "Report",
    "RequestError",
    "RequestOutput",
    "SamplingParams",
    "Stream",
    "TextDelta",
    "Timings",
    "TokenLogprob",
    "TokenizedPrompt",
    "Usage",
]

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TokenizedPrompt:
    """The token ids of a prompt, the text that they were made from, if there was one, and the
    images among them."""

    token_ids: Sequence[int]
    text: str | None = None
    images: tuple[ImageInput, ...] = ()


TEMPLATE_FIELDS = (
    *("tools", "variables", "chat_template"),
    *("add_generation_prompt", "continue_final_message"),
)


@message(eq=True)
class GenerationRequest:
    """One request with its own settings, for `LLM` and `AsyncLLM`.

    ```py
    GenerationRequest(prompt="Once upon a time", priority=1)
    GenerationRequest(messages=[{"role": "user", "content": "Hello"}], timeout=10.0)
    ```

    Attributes:
        prompt: The prompt as text; give one of `prompt`, `prompt_token_ids` and `messages`.
        prompt_token_ids: The prompt as token ids.
        messages: The prompt as a conversation, which the chat template turns into text.
        params: Sampling parameters; by default those that the model recommends.
        request_id: Identity of the request; an empty one is replaced by a new one.
        priority: Smaller goes first under the policy `priority`.
        tenant: The account that the policy `fair` charges.
        cache_salt: Only requests with the same salt share cached prefixes.
        adapter: Name of a loaded adapter; empty: the model alone.
        deadline: Seconds from arrival to the first token, by which a policy may order requests.
        timeout: Seconds from arrival after which the request ends with "timeout".
        arrival: Seconds on the engine's clock. None: now.
        tools: Tools that the chat template shows to the model; only with `messages`.
        variables: Further variables of the chat template; only with `messages`.
        chat_template: A template to use instead of the model's; only with `messages`.
        add_generation_prompt: Whether the template begins the answer; only with `messages`.
        continue_final_message: Whether the answer continues the last message, which needs
            `add_generation_prompt=False`; only with `messages`.
        add_special_tokens: Whether the tokenizer adds special tokens. None: to a text, and not to a
            conversation, whose template writes them.
        text: The text that the token ids were made from, if it is known.
        truncate_prompt_tokens: Most tokens of the prompt that are kept. -1: as many as leave room
            for `max_tokens`. None: a prompt that is too long is refused.
        truncation_side: Where tokens are removed: "left" keeps the last ones, "right" the first.
        pooling: How the prompt is embedded; "": it is not. See `paceline.engine.embeddings`.
        images: Images of a prompt that is no conversation, one for each of its marks: PIL images,
            arrays, bytes of files, or data URLs.
        image_inputs: Images whose positions are in the token ids already.
        kv_transfer_params: Where the KV of the prompt comes from or goes to, for the connector.
        data_parallel_rank: Which of several engines runs it. None: the one that fits best.
        origin: The same for requests that share slots, as those of one body do. "": it has its own.
        session: Name of the conversation that it continues, for `eviction="sessions"`. "": known by
            its prefix alone.
    """

    prompt: str | None = None
    prompt_token_ids: Sequence[int] | None = None
    messages: Sequence[Message] | None = None
    params: SamplingParams = MODEL_DEFAULTS
    request_id: str = ""
    priority: int = 0
    tenant: str = ""
    cache_salt: str = ""
    adapter: str = ""
    deadline: float | None = None
    timeout: float | None = None
    arrival: float | None = None
    tools: Sequence[Mapping[str, Any]] | None = None
    variables: Mapping[str, Any] | None = None
    chat_template: str | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool | None = None
    text: str | None = None
    truncate_prompt_tokens: int | None = None
    truncation_side: Literal["left", "right"] = "left"
    pooling: str = ""
    images: Sequence[Any] = ()
    image_inputs: tuple[ImageInput, ...] = ()
    kv_transfer_params: dict[str, Any] | None = None
    data_parallel_rank: int | None = None
    origin: str = ""
    session: str = ""

    def __post_init__(self) -> None:
        is_ids, is_chat = self.prompt_token_ids is not None, self.messages is not None
        if (self.prompt is not None) + is_ids + is_chat != 1:
            raise RequestError("give one of prompt, prompt_token_ids and messages")
        if self.messages is None:
            self._check_template_fields()
        elif self.images:
            raise RequestError("images of a conversation are parts of its messages; remove images")
        if self.timeout is not None and not self.timeout > 0:
            raise RequestError(f"timeout is {self.timeout}; it must be positive")
        if (most := self.most_prompt_tokens) is not None and most != -1 and most < 1:
            raise RequestError(f"truncate_prompt_tokens is {most}; it must be -1 or positive")
        if self.truncation_side not in ("left", "right"):
            raise RequestError(f"truncation_side is {self.truncation_side!r}; use left or right")

    def _check_template_fields(self) -> None:
        """Refuse fields of the chat template in a request without messages."""
        given = (
            self.tools,
            self.variables,
            self.chat_template is not None,
            not self.add_generation_prompt,
            self.continue_final_message,
        )
        if any(given):
            name = next(compress(TEMPLATE_FIELDS, given))
            raise RequestError(f"{name} is for the chat template; give messages, or remove {name}")

    @property
    def most_prompt_tokens(self) -> int | None:
        """`truncate_prompt_tokens` of the request, or else of its params; None: all are kept."""
        own = self.truncate_prompt_tokens
        return self.params.truncate_prompt_tokens if own is None else own

    @property
    def framed(self) -> bool:
        """Whether the tokenizer adds special tokens to the text."""
        return self.messages is None if self.add_special_tokens is None else self.add_special_tokens

    def ready(self, prompt: TokenizedPrompt, **changes: Any) -> "GenerationRequest":
        """The same request with token ids instead of a text or messages, and with `changes`."""
        params: SamplingParams = changes.pop("params", self.params)
        return replace(
            self,
            prompt=None,
            prompt_token_ids=prompt.token_ids,
            text=prompt.text,
            messages=None,
            tools=None,
            variables=None,
            chat_template=None,
            add_generation_prompt=True,
            continue_final_message=False,
            add_special_tokens=None,
            truncate_prompt_tokens=None,
            params=params.without_truncation(),
            images=(),
            image_inputs=prompt.images,
            **changes,
        )

    def all_images(self) -> Sequence[Any]:
        """What its images are read from, in order."""
        return self.images if self.messages is None else images_of(self.messages)

    def truncated(self, ids: Sequence[int], max_model_len: int) -> Sequence[int]:
        """The token ids of the prompt that are kept; RequestError if more are wanted than fit."""
        if (most := self.most_prompt_tokens) is None:
            return ids
        if most > max_model_len > 0:
            raise RequestError(
                f"truncate_prompt_tokens is {most}, and this model's maximum context length is "
                f"{max_model_len} tokens; lower truncate_prompt_tokens"
            )
        if most == -1:
            most = max_model_len - (self.params.max_tokens or 1)
            if most < 1:
                raise RequestError(
                    f"max_tokens is {self.params.max_tokens}, which leaves no room for the prompt "
                    f"within max_model_len {max_model_len}; lower max_tokens"
                )
        return ids[-most:] if self.truncation_side == "left" else ids[:most]


Ask = GenerationRequest  # its short name


class Stream(Protocol):
    """The text deltas of one request as they arrive; iteration ends with the request.

    A refused request raises RequestError (QueueFull: retry later) before the first delta, or
    EngineFailed if the engine has stopped. A request that fails later ends with the finish reason
    "error", and `output.error` says why. A stream that is closed, dropped or cancelled before its
    end aborts its request.
    """

    @property
    def request_id(self) -> str: ...

    @property
    def prompt_tokens(self) -> int:
        """Number of tokens of the prompt."""
        ...

    @property
    def prompt_token_ids(self) -> tuple[int, ...]: ...

    @property
    def output(self) -> RequestOutput | None:
        """The whole output with usage and timings, after the iteration has ended."""
        ...

    def __aiter__(self) -> AsyncIterator[TextDelta]: ...

    async def __anext__(self) -> TextDelta: ...

    async def whole(self) -> RequestOutput:
        """Wait for the end and return the whole output."""
        ...

    def listen(self, put: Callable[[TextDelta], bool]) -> None:
        """Call `put` with each delta when it is delivered, instead of iterating.

        Deltas that have been waiting are passed first, before `listen` returns. `put` returns
        whether it took the delta. One that was not taken waits for the next call of `listen`, and
        later ones are joined to it. `whole` waits for the end of the request, but not for deltas
        that wait. `put` runs in the delivery of all requests, so it must be quick. If it
        raises, the error is logged and `put` is called no more. A stream with a listener has to
        be closed; to drop it is not enough.
        """
        ...

    async def aclose(self) -> None: ...


class AsyncEngine(Protocol):
    """An engine as the server uses it, from the thread of one event loop."""

    @property
    def max_model_len(self) -> int:
        """Most tokens of a sequence, prompt and output together."""
        ...

    @property
    def capacity(self) -> Capacity: ...

    @property
    def rules(self) -> SamplingRules:
        """Sampling defaults of the model, and limits."""
        ...

    @property
    def adapters(self) -> AdapterControl:
        """Loads and unloads adapters."""
        ...

    @property
    def upkeep(self) -> ModelControl:
        """Changes weights and memory."""
        ...

    async def tokenized(
        self, generation: GenerationRequest, images: Sequence[Any] | None = None
    ) -> TokenizedPrompt:
        """Tokenize a prompt without blocking the event loop for long. `images` are read instead
        of its own, one for each.

        Raises RequestError if it is longer than any prompt can be.
        """
        ...

    def check_room(self, requests: int) -> None:
        """Raise QueueFull if the engine would certainly refuse one of so many new requests."""
        ...

    def generate(self, generation: GenerationRequest, /) -> Stream:
        """Start a request. Raises RequestError, QueueFull or EngineFailed if it is refused."""
        ...

    async def abort(self, request_id: str | Iterable[str]) -> bool:
        """End a request, or several, with the finish reason "abort". False if none is open."""
        ...

    async def explain(self, request_id: str) -> str:
        """What happened to a request, in sentences. RequestError if it is not remembered."""
        ...

    async def snapshot(self) -> dict[str, Any]:
        """The scheduler's whole state as plain data."""
        ...

    async def reports(self) -> Sequence[Report]:
        """Everything counted so far, for each engine."""
        ...

    async def pause(self, mode: Literal["new", "all"] = "new") -> None: ...

    async def paused(self) -> str:
        """What is paused: "new", "all", or nothing ("")."""
        ...

    async def settled(self) -> None:
        """Wait until no request runs, or until `resume`."""
        ...

    async def resume(self) -> None: ...

    async def drain(self) -> None:
        """Refuse new requests, and return when the open ones have finished."""
        ...

    async def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool: ...

    def healthy(self) -> str | None:
        """None, or why no engine is healthy."""
        ...

    def troubles(self) -> Sequence[str]:
        """Why each engine is not healthy; empty for one that is."""
        ...

    @property
    def last_failure_s(self) -> float | None:
        """Seconds since a request last ended with an error; None if none has."""
        ...

    async def gone(self) -> str:
        """Wait until the engine has stopped for good, and return the reason."""
        ...

    async def shutdown(self) -> None:
        """Stop the engine; open requests end with the finish reason "abort"."""
        ...
