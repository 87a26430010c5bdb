"""Turns prompts into requests, and delivered tokens into text for their clients."""

from collections.abc import Sequence
from dataclasses import replace
from heapq import heappop, heappush
from typing import Any
from uuid import uuid4

import numpy as np

from paceline.core.errors import PacelineError, PromptTooLong, RequestError
from paceline.core.events import Timings
from paceline.core.plan import Ended
from paceline.core.pooling import LAST, PooledMean, PromptScores
from paceline.core.request import Finish, Request
from paceline.core.sampling import NO_TARGETS, ServiceLevel
from paceline.engine.api import GenerationRequest, RequestOutput, TokenizedPrompt, TokenLogprob
from paceline.engine.choice_rows import ChoiceRows, NewTokens
from paceline.engine.frontend.entries import read_images, token_entries
from paceline.engine.frontend.metrics import Lengths, Metrics
from paceline.engine.frontend.open_request import OpenChoice, OpenRequest, Sink
from paceline.engine.loop.messages import Abort, Delivery
from paceline.engine.loop.ports import Clock, PromptImages
from paceline.engine.sampling_rules import MODEL_DEFAULTS, NO_RULES, SamplingRules
from paceline.text.chat_template import ChatTemplate
from paceline.text.tokenizer import Tokenizer, check_text


class Frontend:
    """Each open request is closed exactly once: when the engine reports its end, or when its
    timeout passes.

    A choice that reaches a stop string ends at once. An id can be used again only after the engine
    has released it: until then its request is open, or the id is in `_leaving`.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        clock: Clock,
        rules: SamplingRules = NO_RULES,
        metrics: Sequence[Metrics] = (),
        number: int = 0,
    ) -> None:
        self.tokenizer, self.template, self.rules = tokenizer, template, rules
        self.engines = metrics or (Metrics(),)  # the metrics of each engine
        self.metrics = self.engines[0]  # of the engine that delivers
        self.images: PromptImages | None = None  # None: the model reads no images
        self.max_model_len = 0  # of the engine; 0: the engine refuses prompts that are too long
        self.max_num_seqs = 0  # of the engine; 0: the engine refuses too many sequences
        self.open: dict[str, OpenRequest] = {}
        self._rows: ChoiceRows[OpenChoice] = ChoiceRows(number)
        self._failed_at: float | None = None  # when a request last ended with an error
        self._clock = clock
        self._due: list[tuple[float, str]] = []  # a heap; some of these requests have ended
        self._leaving: dict[str, Lengths] = {}  # closed here, and not yet released by the engine

    # -- in -----------------------------------------------------------------

    def begin(
        self, generation: GenerationRequest, sink: Sink, deferred: bool = False, name: str = ""
    ) -> Request:
        """Open a request, under its id or `name`, and return it for the engine. RequestError if it
        is malformed. With `deferred`, it has text at its end, or once `listen` is called."""
        if generation.params is MODEL_DEFAULTS:
            generation = replace(generation, params=self.rules.params())
        self.rules.check(generation.params)
        name = name or generation.request_id or uuid4().hex
        if name in self.open or name in self._leaving:
            raise RequestError(f"request {name!r} is already open; use another request_id")
        prompt = self.encode(generation)
        self._check_length(len(prompt.token_ids), "tokens")
        rank, engines = generation.data_parallel_rank, len(self.engines)
        if rank is not None and not 0 <= rank < engines:
            raise RequestError(f"data_parallel_rank is {rank}; it must lie in 0..{engines - 1}")
        arrival = self._clock() if generation.arrival is None else generation.arrival
        request = self._request(name, prompt, generation, arrival)
        if 0 < self.max_num_seqs < request.width:
            raise RequestError(
                f"{request.width} sequences cannot run at once: max_num_seqs is "
                f"{self.max_num_seqs}; lower n, best_of or beam_width"
            )
        largest, vocabulary = int(request.prompt.max()), self.tokenizer.vocab_size
        if largest >= vocabulary:
            raise RequestError(
                f"the prompt has token id {largest}, which is out of vocabulary; "
                f"the vocabulary has {vocabulary} tokens"
            )
        params, text, timeout = generation.params, prompt.text, generation.timeout
        one = OpenRequest(request, params, text, sink, self._rows, self.tokenizer, arrival, timeout)
        if request.pooling:
            one.pooled = PooledMean(self.rules.embedding.dense)
        self.open[name] = one
        # A stop string must be found as the text grows; scores come with each token.
        deferred = deferred and not params.stop and params.logprobs is None
        self._rows.open(one.choices, request.handle, request.width, deferred)
        if one.timeout is not None:
            heappush(self._due, (one.due, name))
        return request

    def listen(self, request_id: str) -> None:
        """Report the tokens of a request as they arrive from now on, if it is open."""
        if open_request := self.open.get(request_id):
            open_request.listen()

    def encode(self, generation: GenerationRequest) -> TokenizedPrompt:
        """The prompt as text, if it has one, and as token ids."""
        text, images = self.text_of(generation), generation.all_images()
        if text is None:
            return self.whole(generation, generation.text, generation.prompt_token_ids, images)
        is_whole = generation.most_prompt_tokens is None
        ids = self.ids_of(text, generation.framed, is_whole)
        return self.whole(generation, text, ids, images)

    def whole(
        self,
        generation: GenerationRequest,
        text: str | None,
        ids: Sequence[int] | None,
        images: Sequence[Any],
    ) -> TokenizedPrompt:
        """A prompt with its images inserted, or after truncation, on any thread."""
        if images:
            found = read_images(self.images, generation, ids or (), images)
            return TokenizedPrompt(found.token_ids, text, found.images)
        kept = generation.truncated(ids or (), self.max_model_len)
        return TokenizedPrompt(kept, text, generation.image_inputs)

    def text_of(self, generation: GenerationRequest) -> str | None:
        """The text to tokenize; None if the prompt is token ids."""
        if generation.messages is None:
            return generation.prompt
        own = generation.chat_template
        template = self.template if own is None else self.template.replaced(own)
        return template.render(
            generation.messages,
            add_generation_prompt=generation.add_generation_prompt,
            continue_final_message=generation.continue_final_message,
            tools=generation.tools,
            variables=generation.variables,
        )

    def ids_of(self, text: str, framed: bool, is_whole: bool = True) -> list[int]:
        """Tokenize a text, on any thread."""
        self.check_text(text, is_whole)
        return self.tokenizer.encode(text, special=framed)

    def ids_of_all(self, texts: Sequence[str], framed: bool) -> list[list[int]]:
        """Tokenize checked texts on all cores, on any thread."""
        return self.tokenizer.encode_all(texts, special=framed)

    def check_text(self, text: str, is_whole: bool = True) -> None:
        """RequestError if a text has no token ids, or certainly too many: it is refused unread.

        A text that is truncated later, and not whole, may have any number.
        """
        if is_whole and self.max_model_len and len(text) > self.max_model_len:
            least = len(text) // self.tokenizer.longest
            self._check_length(least, f"tokens at least ({len(text)} characters)")
        check_text(text)

    def _check_length(self, tokens: int, what: str) -> None:
        if self.max_model_len and tokens >= self.max_model_len:
            # Clients recognise this error by the second half of the message.
            raise PromptTooLong(
                f"a prompt of {tokens} {what} leaves no room for one more within max_model_len "
                f"{self.max_model_len}; this model's maximum context length is "
                f"{self.max_model_len} tokens"
            )

    def _request(
        self, name: str, prompt: TokenizedPrompt, generation: GenerationRequest, arrival: float
    ) -> Request:
        params = generation.params
        if params.prompt_only:
            # A step that computes a prompt samples a token, so one is sampled here too.
            # `OpenChoice` drops it, and the finish reason is "length" whatever the token is.
            params = replace(
                params,
                max_tokens=1,
                ignore_eos=True,
                stop_token_ids=(),
                structured_outputs=None,
                bad_words=(),
            )
        params = params.with_banned_tokens(lambda word: self.tokenizer.encode(word, special=False))
        sampling, level = params.sampling, ServiceLevel.of(params.slo) or NO_TARGETS
        sampling.check_vocab(self.tokenizer.vocab_size)
        # Cached blocks have no logits. With a unique salt no cached block is found.
        salt = generation.cache_salt if params.prompt_logprobs is None else uuid4().hex
        return Request(
            id=name,
            prompt=prompt.token_ids,
            images=prompt.images,
            max_tokens=params.max_tokens,
            min_tokens=params.min_tokens,
            ignore_eos=params.ignore_eos,
            eos_token_ids=self.tokenizer.eos,
            stop_token_ids=tuple(params.stop_token_ids),
            seed=self.rules.seed_of(params, name),
            priority=generation.priority,
            arrival=arrival,
            tenant=generation.tenant,
            origin=generation.origin,
            session=generation.session,
            deadline=generation.deadline if level.ttft_ms is None else level.ttft_ms / 1e3,
            token_deadline=None if level.itl_ms is None else level.itl_ms / 1e3,
            cache_salt=salt,
            adapter=generation.adapter,
            n=params.n,
            best_of=None if params.beams else params.best_of,
            beam_width=params.beams,
            # Alternatives are known for the first token of a row, not for its drafts.
            drafts=0 if params.logprobs else None,
            length_penalty=params.length_penalty,
            early_stopping=params.early_stopping,
            sampling=sampling,
            constraint=params.constraint,
            handle=self._rows.next_handle(params.beams or params.best_of or params.n),
            pooling=generation.pooling,
            reads_cache=generation.pooling in ("", LAST),
            kv_transfer_params=generation.kv_transfer_params,
            data_parallel_rank=generation.data_parallel_rank,
        )

    # -- out ----------------------------------------------------------------

    def deliver(self, delivery: Delivery) -> list[Abort]:
        """Pass new tokens to their sinks. Returns what to abort in the engine: requests, and
        choices that ended at a stop string while others continue."""
        self.metrics = self.engines[delivery.engine]
        before = self.metrics.tokens
        for scores in delivery.prompt:
            self._add_prompt_logprobs(scores)
        for span in delivery.pooled:
            if (open_request := self.open.get(span.request_id)) is not None:
                assert open_request.pooled is not None, "no embedding was requested"
                open_request.pooled.add(span)
        aborts = self._add_tokens(delivery) if len(delivery.handle) else []
        for ended in delivery.ended:
            self._end(ended)
        for refused in delivery.refused:
            self.forget(refused.request_id, refused.error)
        self.metrics.delivered(before)
        return [one for one in aborts if one.request_id in self.open]

    def _add_tokens(self, delivery: Delivery) -> list[Abort]:
        rows = self._rows
        if (gap_s := rows.repeat(delivery)) is not None:
            self.metrics.repeated(gap_s, len(delivery.handle))
            return []
        new = rows.new_tokens(delivery)
        self._measure(new, delivery.time)
        new = rows.defer(delivery, new)
        return self._report(delivery, new) if len(new.row) else []

    def _report(self, delivery: Delivery, new: NewTokens) -> list[Abort]:
        """Pass on the tokens that have a reader. Returns the choices that they end."""
        ends = {(one.request_id, one.child): one for one in delivery.ended}
        scored, aborts = delivery.logprob is not None, list[Abort]()
        columns = new.offset, new.row, new.ids, new.count
        for entry, row, ids, count in zip(*(one.tolist() for one in columns), strict=True):
            choice = self._rows.owner(row)
            of = choice.request
            logprobs = self._entries(delivery, entry, of) if scored else ()
            ended = ends.get((of.request.id, choice.child)) if ends else None
            if choice.add(ids[:count], logprobs, ended) and ended is None:
                aborts.append(Abort(of.request.id, None if of.all_ended else choice.child))
        return aborts

    def forget(self, request_id: str, error: PacelineError) -> None:
        """Close a request that never started, and report why."""
        if open_request := self.drop(request_id):
            open_request.sink.refuse(error)

    def drop(self, request_id: str) -> OpenRequest | None:
        """Remove a request that never started, without a report."""
        self._leaving.pop(request_id, None)
        return self._close(request_id) if request_id in self.open else None

    def _close(self, request_id: str) -> OpenRequest:
        """Take a request off the list. Its rows are free then, so its output must be complete."""
        one = self.open.pop(request_id)
        self._rows.release(one.request.handle, one.request.width)
        one.choices.clear()  # they refer back to it
        return one

    def end(self, request_id: str, finish: Finish, message: str = "") -> Lengths:
        """End a request that the engine does not have, or whose engine is gone."""
        open_request = self.open[request_id]
        took = Timings(total_s=self._clock() - open_request.arrival)
        ended = Ended(request_id, finish, message=message, timings=took)
        self._record_failure(ended)
        output = open_request.close(ended)
        self._close(request_id)
        lengths = self._lengths(open_request, output)
        self.metrics = open_request.metrics or self.engines[0]
        self.metrics.cut(lengths, took.total_s)
        self._count_ends(output)
        return lengths

    def end_all(self, finish: Finish, message: str = "") -> list[str]:
        """End every request because the engine is gone; returns their ids."""
        names = list(self.open)
        for name in names:
            self.end(name, finish, message)
        self._leaving.clear()
        return names

    def expire(self) -> list[str]:
        """End requests whose timeout has passed; returns those to abort in the engine."""
        now, late = self._clock(), list[str]()
        while self._due and self._due[0][0] <= now:
            due, name = heappop(self._due)
            open_request = self.open.get(name)
            if open_request is None or open_request.due != due:
                continue  # it has ended, and another request may have its id
            self._leaving[name] = self.end(
                name, Finish.TIMEOUT, f"the request did not end within {open_request.timeout:g} s"
            )
            late.append(name)
        return late

    def release_id(self, request_id: str) -> None:
        """Free an id that the engine never had."""
        self._leaving.pop(request_id, None)

    @property
    def last_failure_s(self) -> float | None:
        """Seconds since a request last ended with an error; None if none has."""
        return None if self._failed_at is None else self._clock() - self._failed_at

    def _record_failure(self, ended: Ended) -> None:
        if ended.finish is Finish.ERROR:
            self._failed_at = self._clock()

    def _count_ends(self, output: RequestOutput) -> None:
        for one in output.outputs:
            self.metrics.finished(one.finish_reason or "error")

    def _end(self, ended: Ended) -> None:
        if ended.child < 0 and (left := self._leaving.pop(ended.request_id, None)):
            self.metrics.stages(left, ended.cached, ended.timings)
        if (open_request := self.open.get(ended.request_id)) is None:
            return
        if ended.child >= 0:
            open_request.choices[ended.child].add((), ended=ended)
            return
        self._record_failure(ended)
        output, took = open_request.close(ended), ended.timings
        self._close(ended.request_id)
        if ended.choices:
            self.metrics.generated(output.usage.completion_tokens)
            self._first(open_request, took.total_s - took.decode_s)
        self.metrics.ended(self._lengths(open_request, output), ended.cached, took)
        self._count_ends(output)

    def _lengths(self, open_request: OpenRequest, output: RequestOutput) -> Lengths:
        params = open_request.params
        outputs = [len(one.token_ids) for one in output.outputs]
        return Lengths(output.usage.prompt_tokens, outputs, params.n, params.max_tokens)

    def _measure(self, new: NewTokens, time: float) -> None:
        seen_at = self._rows.seen_at[new.row]
        first = np.isnan(seen_at)
        tokens = new.total
        if np.count_nonzero(first):
            for row, count in zip(new.row[first].tolist(), new.count[first].tolist(), strict=True):
                open_request = self._rows.owner(row).request
                self._first(open_request, time - open_request.arrival)
                if open_request.params.prompt_only:
                    tokens -= count  # it is not part of the output
            seen_at = seen_at[~first]
        if len(seen_at):
            self.metrics.next_tokens(time - seen_at)
        self._rows.seen_at[new.row] = time
        self.metrics.generated(tokens)

    def _first(self, open_request: OpenRequest, after_s: float) -> None:
        if open_request.metrics is None:
            open_request.metrics = self.metrics
            self.metrics.first_token(len(open_request.request.prompt), after_s)

    # -- log-probabilities ---------------------------------------------------

    def _entries(self, delivery: Delivery, row: int, of: OpenRequest) -> list[TokenLogprob]:
        return token_entries(delivery, row, of.request.sampling, self.tokenizer)

    def _add_prompt_logprobs(self, scores: PromptScores) -> None:
        if (open_request := self.open.get(scores.request_id)) is None:
            return
        assert open_request.scores is not None, "no prompt log-probabilities were requested"
        open_request.scores.add(scores)
