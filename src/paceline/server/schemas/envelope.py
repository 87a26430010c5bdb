"""The fields of a response besides its choices, and ready bytes around the text of an event."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import time

import msgspec
from msgspec import UNSET, UnsetType

from paceline.engine.api import RequestOutput, Stream, TextDelta
from paceline.server.schemas.completions import (
    DONE,
    ChatChunk,
    ChatChunkChoice,
    Completion,
    CompletionUsage,
    KVTransferParams,
    PromptTokensDetails,
    RequestTimes,
    StageTimings,
    TextChoice,
    event,
    spent_by,
    times_of,
    usage_of,
)
from paceline.server.schemas.requests import GenerationBody, ScoredBody, StreamOptions
from paceline.server.settings import ServerSettings

quoted = msgspec.json.Encoder().encode  # a text as JSON
Chunk = type[ChatChunk] | type[Completion]
ReasoningCount = Callable[[Sequence[RequestOutput]], int]
NO_OPTIONS = StreamOptions(include_usage=None, continuous_usage_stats=None)
ALL = StreamOptions(include_usage=True, continuous_usage_stats=True)


@dataclass(frozen=True, slots=True)
class TextFrame:
    """The bytes of an event before and after its text; the quotes belong to the text."""

    before: bytes
    after: bytes

    @classmethod
    def of(cls, write: Callable[[str], bytes]) -> "TextFrame":
        """Of the events that `write` makes of texts."""
        before, after = cut(write("0"), write("1"))
        return cls(before[:-1], after[1:])


@dataclass(frozen=True, slots=True)
class NumberedFrame:
    """The same for events with a number before their text."""

    before: bytes
    between: bytes
    after: bytes

    @classmethod
    def of(cls, write: Callable[[int, str], bytes]) -> "NumberedFrame":
        before, _ = cut(write(0, "0"), write(1, "0"))
        frame = TextFrame.of(lambda text: write(0, text))
        return cls(before, frame.before[len(before) + 1 :], frame.after)

    def event(self, number: int, text: str) -> bytes:
        return b"%b%d%b%b%b" % (self.before, number, self.between, quoted(text), self.after)


def cut(one: bytes, other: bytes) -> tuple[bytes, bytes]:
    """What precedes and what follows the only byte in which two events differ."""
    at = bisect_left(range(len(one)), True, key=lambda at: one[: at + 1] != other[: at + 1])
    assert one[at + 1 :] == other[at + 1 :], "the events differ in more than one byte"
    return one[:at], one[at + 1 :]


class Envelope:
    """Adds id, model and time, and usage as requested: not at all, at the end, or in each chunk.

    If it `counts`, each chunk has the usage so far, so no two chunks have the same fields. With
    `as_ids`, the tokens of logprobs are written as their ids.
    """

    def __init__(
        self,
        name: str,
        model: str,
        options: StreamOptions,
        *,
        timings: bool = False,
        metrics: bool = False,
        as_ids: bool = False,
    ) -> None:
        self.id, self.model, self.created = name, model, int(time())
        self.as_ids = as_ids
        self._include = options.include_usage is True
        self.counts = self._include and options.continuous_usage_stats is True
        self._timings, self._metrics = timings, metrics
        self._prompt = self._completion = 0
        self.fingerprint: str | UnsetType = UNSET
        self.reasoning_tokens: ReasoningCount | None = None  # None: the model has no reasoning

    @classmethod
    def of(
        cls,
        body: GenerationBody,
        name: str,
        model: str,
        settings: ServerSettings,
        fingerprint: str = "",
    ) -> "Envelope":
        """The settings have defaults of the body, and may force the usage."""
        options = body.stream_options or NO_OPTIONS
        as_ids = body.return_tokens_as_token_ids if isinstance(body, ScoredBody) else False
        found = cls(
            name,
            model,
            ALL if settings.enable_force_include_usage else options,
            timings=settings.timings if body.timings is None else body.timings,
            metrics=settings.enable_per_request_metrics,
            as_ids=settings.return_tokens_as_token_ids if as_ids is None else as_ids,
        )
        found.fingerprint = fingerprint or UNSET
        return found

    def count_prompts(self, streams: Sequence[Stream]) -> None:
        self._prompt = sum(stream.prompt_tokens for stream in streams)

    def count(self, delta: TextDelta) -> None:
        self._completion += len(delta.token_ids)

    # -- streams ------------------------------------------------------------

    def chat_event(
        self, choice: ChatChunkChoice, prompt: Sequence[int] | UnsetType = UNSET
    ) -> bytes:
        """A chunk of a chat with one choice; `prompt` has the token ids of the prompt."""
        usage = self._running_usage()
        return event(
            ChatChunk(
                self.id,
                self.created,
                self.model,
                (choice,),
                usage,
                prompt_token_ids=prompt,
                system_fingerprint=self.fingerprint,
            )
        )

    def text_event(self, choice: TextChoice) -> bytes:
        """A chunk of a completion with one choice."""
        usage = self._running_usage()
        return event(
            Completion(
                self.id,
                self.created,
                self.model,
                (choice,),
                usage,
                system_fingerprint=self.fingerprint,
            )
        )

    def closing(self, kind: Chunk, outputs: Sequence[RequestOutput]) -> bytes:
        """The end of a stream, after a chunk with usage and timings if they are requested."""
        transfer = transfer_of(outputs)
        if not (self._include or self._timings or transfer):
            return DONE
        last = kind(
            self.id,
            self.created,
            self.model,
            (),
            self.usage(outputs) if self._include else UNSET,
            self.spent(outputs),
            metrics=self.metrics(outputs) if self._include else UNSET,
            kv_transfer_params=transfer,
            system_fingerprint=self.fingerprint,
        )
        return event(last) + DONE

    def _running_usage(self) -> CompletionUsage | UnsetType | None:
        """The usage so far. Cached tokens are known only at the end."""
        if not self._include:
            return UNSET
        if not self.counts:
            return None
        prompt, completion = self._prompt, self._completion
        return CompletionUsage(prompt, completion, prompt + completion, PromptTokensDetails(0))

    # -- whole answers ------------------------------------------------------

    def usage(self, outputs: Sequence[RequestOutput]) -> CompletionUsage:
        reasoning = self.reasoning_tokens and self.reasoning_tokens(outputs)
        return usage_of([output.usage for output in outputs], reasoning)

    def spent(self, outputs: Sequence[RequestOutput]) -> StageTimings | UnsetType:
        return spent_by(outputs) if self._timings else UNSET

    def metrics(self, outputs: Sequence[RequestOutput]) -> RequestTimes | UnsetType | None:
        return times_of(outputs) if self._metrics else UNSET


def transfer_of(outputs: Sequence[RequestOutput]) -> KVTransferParams:
    """Where another engine can read the KV of the prompt, if it was asked for."""
    return outputs[0].kv_transfer_params or UNSET
