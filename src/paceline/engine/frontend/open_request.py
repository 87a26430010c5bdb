"""An open request as its client sees it: choices whose text grows until they end."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Protocol

from paceline.core.errors import PacelineError
from paceline.core.plan import Choice, Ended
from paceline.core.pooling import PooledMean
from paceline.core.request import Request
from paceline.engine.api import (
    ChoiceOutput,
    FinishReason,
    PromptLogprobs,
    RequestOutput,
    SamplingParams,
    TextDelta,
    TokenLogprob,
    Usage,
)
from paceline.engine.choice_rows import ROW, ChoiceRows
from paceline.engine.frontend.entries import PromptEntries
from paceline.engine.frontend.metrics import Metrics
from paceline.text.detokenizer import Detokenizer, NoText
from paceline.text.tokenizer import Tokenizer


class Sink(Protocol):
    """Receives the output of one request: deltas and one `close`, or one `refuse`."""

    def put(self, delta: TextDelta) -> None: ...

    def close(self, output: RequestOutput) -> None: ...

    def refuse(self, error: PacelineError) -> None: ...


class OpenChoice:
    """Its deltas add up to its output; the last one has the finish reason.

    The first delta has the log-probabilities of the prompt that are known by then: all of them,
    unless the request failed.
    """

    def __init__(self, request: "OpenRequest", index: int) -> None:
        params = request.params
        self.request, self.index = request, index
        self.row = (request.request.handle & ROW) + index
        self.finish_reason: FinishReason | None = None
        self.token_ids: list[int] = []
        self._prompt: PromptLogprobs | None = None
        self._stop_reason: str | int | None = None
        self._score: float | None = None  # of a beam
        self._texts: list[str] = []
        self._logprobs: list[TokenLogprob] | None = None if params.logprobs is None else []
        self._detokenizer: Detokenizer | NoText = NoText()
        if params.detokenize:
            self._detokenizer = Detokenizer(
                request.tokenizer,
                stop=tuple(params.stop),
                include_stop=params.include_stop_str_in_output,
                skip_special=params.skip_special_tokens,
                prompt=request.request.prompt,
                min_tokens=params.min_tokens,
            )
        # Are its tokens texts and nothing else, until it ends?
        self._plain = not (params.stop or params.logprobs is not None or params.prompt_only)

    @property
    def child(self) -> int:
        """Which of several sequences it is to the engine; -1: the only one."""
        return self.index if self.request.request.width > 1 else -1

    def add(
        self,
        ids: Sequence[int],
        logprobs: Sequence[TokenLogprob] = (),
        ended: Ended | Choice | None = None,
    ) -> bool:
        """Pass tokens on, after those that wait, unless it has ended; returns whether it ends."""
        if self.finish_reason is not None:
            return False
        rows = self.request.rows
        if rows.tokens.has_tokens(self.row):
            ids = [*rows.tokens.take(self.row), *ids]
        self.request.sink.put(self.push(ids, logprobs, ended))
        if self.finish_reason is None:
            return False
        rows.end(self.row)
        return True

    def push(
        self,
        ids: Sequence[int],
        logprobs: Sequence[TokenLogprob] = (),
        ended: Ended | Choice | None = None,
    ) -> TextDelta:
        """Add tokens. They are the last ones if it ended, or if they complete a stop string."""
        detokenizer = self._detokenizer
        if ended is None and self._plain and self._texts:
            text = detokenizer.push(ids)
            self._texts.append(text)
            self.token_ids += ids
            return TextDelta(self.index, text, tuple(ids))
        params, before = self.request.params, detokenizer.tokens
        ids = () if params.prompt_only else ids
        stopped = ended is not None and ended.stop_token is not None
        unseen = stopped and not params.include_stop_str_in_output
        text = detokenizer.push(ids[:-1] if unseen else ids)
        if ended is not None:
            text += detokenizer.finish()
        if detokenizer.stopped is not None:
            ids = ids[: detokenizer.tokens - before]
            self._end("stop", detokenizer.stopped)
        elif ended is not None:
            own = self.request.request.stop_token_ids
            named = ended.stop_token if ended.stop_token in own else None
            self._end(ended.finish.value, named)
            self._score = ended.score if isinstance(ended, Choice) else None
        return self._piece(text, tuple(ids), tuple(logprobs[: len(ids)]))

    def _end(self, reason: FinishReason, stop_reason: str | int | None) -> None:
        self.finish_reason, self._stop_reason = reason, stop_reason

    def _piece(
        self, text: str, ids: tuple[int, ...], logprobs: tuple[TokenLogprob, ...]
    ) -> TextDelta:
        begins = not self._texts
        if begins and self.request.scores is not None:
            self._prompt = self.request.scores.copy()
        self._texts.append(text)
        self.token_ids += ids
        if self._logprobs is not None:
            self._logprobs += logprobs
        reported = None if self._logprobs is None else logprobs
        return TextDelta(
            self.index,
            text,
            ids,
            reported,
            self.finish_reason,
            self._stop_reason,
            self._prompt if begins else None,
        )

    def answer(self) -> ChoiceOutput:
        """The whole choice so far."""
        reported = None if self._logprobs is None else tuple(self._logprobs)
        text, ids = "".join(self._texts), tuple(self.token_ids)
        ending = self.finish_reason, self._stop_reason
        return ChoiceOutput(self.index, text, ids, reported, *ending, self._prompt, self._score)


@dataclass(slots=True, eq=False)
class OpenRequest:
    """A request that has not ended. It has all its choices from the start.

    Tokens that wait in its rows are added before any others.
    """

    request: Request
    params: SamplingParams
    prompt: str | None
    sink: Sink
    rows: ChoiceRows[OpenChoice]
    tokenizer: Tokenizer
    arrival: float
    timeout: float | None = None  # seconds from arrival to its end
    metrics: Metrics | None = None  # of the engine that made its first token
    choices: list[OpenChoice] = field(default_factory=list[OpenChoice])
    scores: PromptEntries | None = None  # None: not requested
    pooled: PooledMean | None = None  # None: no embedding was requested

    def __post_init__(self) -> None:
        if self.params.prompt_logprobs is not None:
            self.scores = PromptEntries(self.request.prompt, self.tokenizer)
        self.choices = [OpenChoice(self, index) for index in range(self.params.n)]

    @property
    def due(self) -> float:
        """The time at which its timeout passes."""
        return self.arrival + (inf if self.timeout is None else self.timeout)

    @property
    def all_ended(self) -> bool:
        """Whether all choices have ended."""
        return all(choice.finish_reason is not None for choice in self.choices)

    def listen(self) -> None:
        """Report tokens as they arrive from now on, and those that wait at once."""
        for choice in self.choices:
            self.rows.undefer(choice.row)
            if self.rows.tokens.has_tokens(choice.row):
                choice.add(())

    def close(self, ended: Ended) -> RequestOutput:
        """End the request and the choices that are still open."""
        for best, choice in zip(ended.choices, self.choices, strict=False):
            choice.add(best.tokens, ended=best)
        for choice in self.choices:
            choice.add((), ended=ended)
        output = self.output(ended)
        self.sink.close(output)
        return output

    def output(self, ended: Ended) -> RequestOutput:
        returned = sum(len(choice.token_ids) for choice in self.choices)
        tokens = returned if self.params.prompt_only else returned + ended.unreturned
        return RequestOutput(
            self.request.id,
            self.prompt,
            tuple(self.request.prompt.tolist()),
            tuple(choice.answer() for choice in self.choices),
            Usage(len(self.request.prompt), tokens, ended.cached),
            ended.timings,
            error=ended.message,
            pooled=None if self.pooled is None else self.pooled.value(),
            kv_transfer_params=ended.kv_transfer_params,
        )
