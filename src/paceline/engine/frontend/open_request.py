"""An open request as its client sees it: choices whose text grows until they end."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

from paceline.core.plan import Choice, Ended
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
from paceline.engine.core.ports import Sink
from paceline.engine.frontend.choice_rows import ROW, ChoiceRows
from paceline.engine.frontend.prompt_entries import PromptEntries
from paceline.text.detokenizer import Detokenizer
from paceline.text.tokenizer import Tokenizer


class OpenChoice:
    """Its deltas add up to its output; the last one has the finish reason.

    The first delta has the log-probabilities of the prompt that are known by then: all of them,
    unless the request failed.
    """

    def __init__(
        self,
        index: int,
        request: Request,
        params: SamplingParams,
        tokenizer: Tokenizer,
        scores: PromptEntries | None,
    ) -> None:
        self.index = index
        self._scores = scores
        self._prompt: PromptLogprobs | None = None
        self.finish_reason: FinishReason | None = None
        self.token_ids: list[int] = []
        self._stop_reason: str | int | None = None
        self._texts: list[str] = []
        self._logprobs: list[TokenLogprob] | None = None if params.logprobs is None else []
        self._prompt_only = params.prompt_only
        self._named_stops = request.stop_token_ids
        self._include_stop = params.include_stop_str_in_output
        self._detokenizer = Detokenizer(
            tokenizer,
            stop=tuple(params.stop),
            include_stop=params.include_stop_str_in_output,
            skip_special=params.skip_special_tokens,
            prompt=request.prompt,
            min_tokens=params.min_tokens,
        )

    def push(
        self,
        ids: Sequence[int],
        logprobs: Sequence[TokenLogprob] = (),
        ended: Ended | Choice | None = None,
    ) -> TextDelta:
        """Add tokens. They are the last ones if it ended, or if they complete a stop string."""
        detokenizer, before = self._detokenizer, self._detokenizer.tokens
        ids = () if self._prompt_only else ids
        stopped = ended is not None and ended.stop_token is not None
        text = detokenizer.push(ids[:-1] if stopped and not self._include_stop else ids)
        if ended is not None:
            text += detokenizer.finish()
        if detokenizer.stopped is not None:
            ids = ids[: detokenizer.tokens - before]
            self._end("stop", detokenizer.stopped)
        elif ended is not None:
            named = ended.stop_token if ended.stop_token in self._named_stops else None
            self._end(ended.finish.value, named)
        return self._piece(text, tuple(ids), tuple(logprobs[: len(ids)]))

    def _end(self, reason: FinishReason, stop_reason: str | int | None) -> None:
        self.finish_reason, self._stop_reason = reason, stop_reason

    def _piece(
        self, text: str, ids: tuple[int, ...], logprobs: tuple[TokenLogprob, ...]
    ) -> TextDelta:
        begins = not self._texts
        if begins and self._scores is not None:
            self._prompt = self._scores.copy()
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
        return ChoiceOutput(self.index, text, ids, reported, *ending, self._prompt)


@dataclass(slots=True, eq=False)
class OpenRequest:
    """A request that has not ended. It has all its choices from the start.

    Tokens that wait in its rows are added before any others.
    """

    request: Request
    params: SamplingParams
    prompt: str | None
    sink: Sink
    rows: ChoiceRows["OpenRequest"]
    tokenizer: Tokenizer
    arrival: float
    timeout: float | None = None  # seconds from arrival to its end
    begun: bool = False  # does it have a token?
    choices: list[OpenChoice] = field(default_factory=list[OpenChoice])
    scores: PromptEntries | None = None  # None: not requested

    def __post_init__(self) -> None:
        if self.params.prompt_logprobs is not None:
            self.scores = PromptEntries(self.request.prompt, self.tokenizer)
        for index in range(self.params.n):
            request, params, text = self.request, self.params, self.tokenizer
            self.choices.append(OpenChoice(index, request, params, text, self.scores))

    @property
    def due(self) -> float:
        """The time at which its timeout passes."""
        return self.arrival + (inf if self.timeout is None else self.timeout)

    @property
    def first_row(self) -> int:
        """The row of its first choice."""
        return self.request.handle & ROW

    @property
    def all_ended(self) -> bool:
        """Whether all choices have ended."""
        return all(choice.finish_reason is not None for choice in self.choices)

    def push(
        self,
        child: int,
        ids: Sequence[int],
        logprobs: Sequence[TokenLogprob] = (),
        ended: Ended | Choice | None = None,
    ) -> bool:
        """Add tokens to a choice, unless it has ended; returns whether it ends now."""
        choice = self.choices[max(child, 0)]
        if choice.finish_reason is not None:
            return False
        row = self.first_row + choice.index
        if self.rows.tokens.has_tokens(row):
            ids = [*self.rows.tokens.take(row), *ids]
        self.sink.put(choice.push(ids, logprobs, ended))
        if choice.finish_reason is None:
            return False
        self.rows.end(row)
        return True

    def listen(self) -> None:
        """Report tokens as they arrive from now on, and those that wait at once."""
        end = self.first_row + len(self.choices)
        self.rows.deferred[self.first_row : end] = False
        for choice in self.choices:
            if self.rows.tokens.has_tokens(self.first_row + choice.index):
                self.push(choice.index, ())

    def close(self, ended: Ended) -> RequestOutput:
        """End the request and the choices that are still open."""
        for index, choice in enumerate(ended.choices):
            self.push(index, choice.tokens, ended=choice)
        for choice in self.choices:
            self.push(choice.index, (), ended=ended)
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
        )
