"""POST /v1/completions: texts."""

from collections.abc import Sequence

from fastapi import APIRouter, Request, Response
from msgspec import UNSET

from paceline.engine.api import GenerationRequest, RequestOutput, Stream, TextDelta, TokenLogprob
from paceline.server.body import parsed
from paceline.server.client_headers import ClientHeaders
from paceline.server.context import ServerContext
from paceline.server.errors import GENERATED, ErrorBody
from paceline.server.parse import check_prompts, completion_asks
from paceline.server.replies.event_stream import TokenOffsets, echoed_offsets
from paceline.server.replies.generation_response import GenerationJob, GenerationResponse
from paceline.server.schemas.completions import (
    Completion,
    TextChoice,
    TextLogprobs,
    TokenSpeller,
    encode,
    event,
    finite,
    prompt_column,
)
from paceline.server.schemas.envelope import Envelope, TextFrame, transfer_of
from paceline.server.schemas.requests import CompletionRequest
from paceline.text.tokenizer import Tokenizer


def completion_routes(context: ServerContext) -> APIRouter:
    router = APIRouter(tags=["generation"], route_class=context.body_route)

    @router.post("/v1/completions", responses=GENERATED)
    async def create_completion(body: CompletionRequest, request: Request) -> Response:
        """Continue a text, or each of several texts."""
        client = ClientHeaders.of(
            request.headers, "cmpl", body.request_id, body.session_id, body.prompt_cache_key
        )
        check_prompts(body, context.settings.max_prompts)
        model = context.model(body.model)
        markers = context.tokenizer.infill if body.suffix else None
        rules = context.engine.rules
        generations = await parsed(request, completion_asks, body, rules, markers)
        name = context.open_requests.name(client.request_id)
        fingerprint = context.system_fingerprint
        envelope = Envelope.of(body, name, model, context.settings, fingerprint)
        changed = body.truncate_prompt_tokens is not None or body.add_special_tokens is False
        if body.echo and changed:
            generations = await truncated(context, generations)
        echoed = await parsed(request, prompt_texts, context, generations) if body.echo else []
        writer = CompletionWriter(envelope, body, echoed, context.tokenizer)
        return GenerationResponse(
            context, GenerationJob(client, name, generations, writer, body.stream is True)
        )

    return router


async def truncated(
    context: ServerContext, generations: Sequence[GenerationRequest]
) -> list[GenerationRequest]:
    """The same requests with token ids, so that what is left of their prompts can be echoed."""
    read = context.engine.tokenized
    return [one.ready(await read(one)) for one in generations]


def prompt_texts(context: ServerContext, generations: Sequence[GenerationRequest]) -> list[str]:
    """The texts of prompts; of token ids, with the special ones."""
    decode = context.tokenizer.decode
    return [
        one.prompt or decode(one.prompt_token_ids or (), skip_special=False) for one in generations
    ]


class CompletionWriter:
    """The n choices of the first prompt come first, then those of the second, and so on.

    With `echo`, `_echoed` has the texts of the prompts, which begin the texts of the choices; the
    logprobs of their tokens precede the first ones of each choice.
    """

    def __init__(
        self,
        envelope: Envelope,
        body: CompletionRequest,
        echoed: Sequence[str],
        tokenizer: Tokenizer,
    ) -> None:
        self._envelope, self._body, self._echoed = envelope, body, echoed
        self._tokenizer = tokenizer
        self._speller = TokenSpeller(envelope.as_ids)
        self._with_ids = body.return_token_ids is True
        self._prompts: list[tuple[int, ...]] = []  # token ids, where they are needed
        self._begun: set[int] = set()  # choices that have been written to
        self._offsets: dict[int, TokenOffsets] = {}  # by choice, where logprobs are wanted

    def opening(self, streams: Sequence[Stream]) -> bytes:
        self._envelope.count_prompts(streams)
        if self._body.logprobs is not None or self._with_ids:
            self._prompts = [stream.prompt_token_ids for stream in streams]
        return b""

    def delta(self, part: int, delta: TextDelta) -> bytes:
        self._envelope.count(delta)
        shown = delta.text or delta.finish_reason or delta.logprobs
        if not (shown or (self._with_ids and delta.token_ids)):
            return b""
        return self._envelope.text_event(self._choice(part, delta))

    def frame(self, part: int, index: int) -> TextFrame | None:
        own = self._index(part, index)
        if self._with_ids or self._envelope.counts or (self._echoed and own not in self._begun):
            return None
        return TextFrame.of(lambda text: self._envelope.text_event(TextChoice(own, text)))

    def _index(self, part: int, index: int) -> int:
        return part * (self._body.n or 1) + index

    def closing(self, outputs: Sequence[RequestOutput]) -> bytes:
        return self._envelope.closing(Completion, outputs)

    def failing(self, error: ErrorBody) -> bytes:
        return event(error)

    def whole(self, outputs: Sequence[RequestOutput]) -> bytes:
        envelope = self._envelope
        self._prompts = [output.prompt_token_ids for output in outputs]
        choices = [
            self._choice(part, answer)
            for part, output in enumerate(outputs)
            for answer in output.outputs
        ]
        return encode(
            Completion(
                envelope.id,
                envelope.created,
                envelope.model,
                choices,
                envelope.usage(outputs),
                envelope.spent(outputs),
                transfer_of(outputs),
                envelope.metrics(outputs),
                envelope.fingerprint,
            )
        )

    def _choice(self, part: int, delta: TextDelta) -> TextChoice:
        body, index = self._body, self._index(part, delta.index)
        begins = index not in self._begun
        echoes = bool(self._echoed) and begins
        self._begun.add(index)
        absent = UNSET if body.stream else None  # clients read the fields of a whole choice
        return TextChoice(
            index,
            self._echoed[part] + delta.text if echoes else delta.text,
            self._logprobs(part, index, delta, echoes),
            delta.finish_reason,
            delta.stop_reason if delta.finish_reason else UNSET,
            UNSET if body.stream else prompt_column(delta.prompt_logprobs, body.prompt_logprobs),
            delta.token_ids if self._with_ids else absent,
            self._prompts[part] if self._with_ids and begins else absent,
        )

    def _logprobs(
        self, part: int, index: int, delta: TextDelta, echoes: bool
    ) -> TextLogprobs | None:
        """Logprobs of the tokens of a delta, after those of the prompt if it is echoed here."""
        if self._body.logprobs is None or delta.logprobs is None:
            return None
        # Those that are named come after the token itself.
        named = self._body.logprob_token_ids
        most = len(named) + 1 if named else self._body.logprobs
        ids, spell = [one.chosen.token_id for one in delta.logprobs], self._speller.spell
        offsets = self._offsets_of(part, index).of(ids)
        entries: list[TokenLogprob | None] = list(delta.logprobs)
        if echoes:
            prompt, text = self._prompts[part], self._echoed[part]
            offsets = echoed_offsets(self._tokenizer, prompt, text, self._given) + offsets
            ids, entries = [*prompt, *ids], [*(delta.prompt_logprobs or ()), *entries]
        return TextLogprobs(
            [spell(id, self._tokenizer.token_bytes(id)) for id in ids],
            [None if one is None else finite(one.chosen.logprob) for one in entries],
            [None if one is None else self._speller.tops(one, most) for one in entries],
            offsets,
        )

    def _offsets_of(self, part: int, index: int) -> TokenOffsets:
        if index not in self._offsets:
            skip = self._body.skip_special_tokens is not False
            begin = len(self._echoed[part]) if self._echoed else 0
            self._offsets[index] = TokenOffsets(self._tokenizer, skip, self._prompts[part], begin)
        return self._offsets[index]

    @property
    def _given(self) -> bool:
        """Whether the prompts are texts, and echoed as they are."""
        prompt, is_whole = self._body.prompt, self._body.truncate_prompt_tokens is None
        return is_whole and (isinstance(prompt, str) or isinstance(prompt[0], str))
