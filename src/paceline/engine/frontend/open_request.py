"""One request as its client sees it: text that grows, choice by choice, until all have ended."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

from paceline.core.plan import Choice, Ended
from paceline.core.request import Request
from paceline.engine.api import (
    ChoiceOutput,
    FinishReason,
    PromptLogprob,
    PromptLogprobs,
    RequestOutput,
    SamplingParams,
    TextDelta,
    TokenLogprob,
    Usage,
)
from paceline.engine.core.ports import Sink
from paceline.text.detokenizer import Detokenizer
from paceline.text.tokenizer import Tokenizer

PromptSoFar = list[PromptLogprob | None]  # by token; those that are not known yet are None


class OpenChoice:
    """Its pieces add up to its answer; the last one has the finish reason, and nothing follows.

    The first one has what is known of the prompt by then, which is everything unless it failed.
    """

    def __init__(
        self,
        index: int,
        request: Request,
        params: SamplingParams,
        tokenizer: Tokenizer,
        scores: PromptSoFar | None,
    ) -> None:
        self.index = index
        self._scores = scores
        self._prompt: PromptLogprobs | None = None
        self.finish_reason: FinishReason | None = None
        self.last_told: float | None = None  # when it last got tokens
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
        """Its next tokens; the last ones if it ended, or if a stop string is found."""
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
            self._prompt = tuple(self._scores)
        self._texts.append(text)
        self.token_ids += ids
        if self._logprobs is not None:
            self._logprobs += logprobs
        told = None if self._logprobs is None else logprobs
        return TextDelta(
            self.index,
            text,
            ids,
            told,
            self.finish_reason,
            self._stop_reason,
            self._prompt if begins else None,
        )

    def answer(self) -> ChoiceOutput:
        """All of it so far."""
        told = None if self._logprobs is None else tuple(self._logprobs)
        text, ids = "".join(self._texts), tuple(self.token_ids)
        ending = self.finish_reason, self._stop_reason
        return ChoiceOutput(self.index, text, ids, told, *ending, self._prompt)


@dataclass(slots=True, eq=False)
class OpenRequest:
    """A request that its client has not seen the end of; choices are there from the beginning."""

    request: Request
    params: SamplingParams
    prompt: str | None
    sink: Sink
    tokenizer: Tokenizer
    arrival: float
    timeout: float | None = None  # seconds from arrival to its end
    begun: bool = False  # has it got a token?
    choices: list[OpenChoice] = field(default_factory=list[OpenChoice])
    scores: PromptSoFar | None = None  # None: not wanted

    def __post_init__(self) -> None:
        if self.params.prompt_logprobs is not None:
            self.scores = PromptSoFar([None]) * len(self.request.prompt)
        for index in range(self.params.n):
            request, params, text = self.request, self.params, self.tokenizer
            self.choices.append(OpenChoice(index, request, params, text, self.scores))

    @property
    def due(self) -> float:
        """When its time is over."""
        return self.arrival + (inf if self.timeout is None else self.timeout)

    @property
    def told(self) -> bool:
        """Have all choices ended?"""
        return all(choice.finish_reason is not None for choice in self.choices)

    def add_prompt_logprobs(self, first: int, scores: Sequence[PromptLogprob]) -> None:
        """Of tokens of the prompt, from one on; what is known of them already stays."""
        assert self.scores is not None, "nobody asked for them"
        for place, one in enumerate(scores, first):
            self.scores[place] = self.scores[place] or one

    def push(
        self,
        child: int,
        ids: Sequence[int],
        logprobs: Sequence[TokenLogprob] = (),
        ended: Ended | Choice | None = None,
    ) -> bool:
        """News of one of its sequences; what comes after its end is dropped. Did it end now?"""
        choice = self.choices[max(child, 0)]
        if choice.finish_reason is not None:
            return False
        self.sink.put(choice.push(ids, logprobs, ended))
        return choice.finish_reason is not None

    def close(self, ended: Ended) -> RequestOutput:
        """The request has ended, and so have its choices that are still open."""
        for index, choice in enumerate(ended.choices):
            self.push(index, choice.tokens, ended=choice)
        for choice in self.choices:
            self.push(choice.index, (), ended=ended)
        output = self.output(ended)
        self.sink.close(output)
        return output

    def output(self, ended: Ended) -> RequestOutput:
        tokens = sum(len(choice.token_ids) for choice in self.choices)
        return RequestOutput(
            self.request.id,
            self.prompt,
            tuple(self.request.prompt.tolist()),
            tuple(choice.answer() for choice in self.choices),
            Usage(len(self.request.prompt), tokens, ended.cached),
            ended.timings,
            error=ended.message,
        )
