"""POST /v1/completions: texts."""

from collections.abc import Sequence

from fastapi import APIRouter, Request, Response
from msgspec import UNSET

from paceline.engine.api import Ask, Piece, RequestOutput, Stream, TokenLogprob
from paceline.server.answering import Answering, Work
from paceline.server.asking import completion_asks
from paceline.server.caller import Caller
from paceline.server.desk import Desk
from paceline.server.documents import GENERATED
from paceline.server.envelope import Envelope
from paceline.server.schema import CompletionRequest
from paceline.server.shapes import (
    Completion,
    TextChoice,
    TextLogprobs,
    encode,
    prompt_column,
    text_logprobs,
)
from paceline.text.tokenizer import Tokenizer


def completion_routes(desk: Desk) -> APIRouter:
    router = APIRouter(tags=["generation"])

    @router.post("/v1/completions", responses=GENERATED)
    async def create_completion(body: CompletionRequest, request: Request) -> Response:
        """Continue a text, or each of several."""
        caller = Caller.of(request.headers, "cmpl")
        model, asks = desk.model(body.model), completion_asks(body)
        name = desk.name(caller.request_id)
        envelope = Envelope.of(body, name, model, desk.settings.timings)
        echoed = [prompt_text(desk, ask) for ask in asks] if body.echo else []
        form = CompletionForm(envelope, body, echoed, desk.tokenizer)
        return Answering(desk, Work(caller, name, asks, form, body.stream is True))

    return router


def prompt_text(desk: Desk, ask: Ask) -> str:
    return ask.prompt or desk.tokenizer.decode(ask.prompt_token_ids or ())


class CompletionForm:
    """The n choices of the first prompt come first, then those of the second, and so on.

    `_echoed` has the texts of the prompts, if they begin the texts of the choices; then their
    tokens come with the first ones of each choice too.
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
        self._prompts: list[tuple[int, ...]] = []  # token ids
        self._offsets: dict[int, int] = {}  # where its next token begins, by choice

    def opening(self, streams: Sequence[Stream]) -> bytes:
        self._envelope.count_prompts(streams)
        self._prompts = [stream.prompt_token_ids for stream in streams]
        return b""

    def piece(self, part: int, piece: Piece) -> bytes:
        self._envelope.count(piece)
        if not (piece.text or piece.finish_reason or piece.logprobs):
            return b""
        return self._envelope.event(Completion, self._choice(part, piece))

    def closing(self, outputs: Sequence[RequestOutput]) -> bytes:
        return self._envelope.closing(Completion, outputs)

    def whole(self, outputs: Sequence[RequestOutput]) -> bytes:
        envelope = self._envelope
        self._prompts = [output.prompt_token_ids for output in outputs]
        choices = [
            self._choice(part, answer)
            for part, output in enumerate(outputs)
            for answer in output.outputs
        ]
        usage, timings = envelope.usage(outputs), envelope.spent(outputs)
        model, created = envelope.model, envelope.created
        return encode(Completion(envelope.id, created, model, choices, usage, timings))

    def _choice(self, part: int, piece: Piece) -> TextChoice:
        body, index = self._body, part * (self._body.n or 1) + piece.index
        echoes = bool(self._echoed) and index not in self._offsets
        return TextChoice(
            index,
            self._echoed[part] + piece.text if echoes else piece.text,
            self._logprobs(index, piece, part if echoes else None),
            piece.finish_reason,
            piece.stop_reason if piece.finish_reason else UNSET,
            prompt_column(piece.prompt_logprobs, body.prompt_logprobs),
        )

    def _logprobs(self, index: int, piece: Piece, echoed: int | None) -> TextLogprobs | None:
        """Of the tokens of a piece; with those of a prompt before them, if one is echoed."""
        offset = self._offsets.setdefault(index, 0)
        most = self._body.logprobs
        if most is None or piece.logprobs is None:
            return None
        tokens = [one.chosen.text for one in piece.logprobs]
        told: list[TokenLogprob | None] = list(piece.logprobs)
        if echoed is not None:
            before = [self._tokenizer.token(id) for id in self._prompts[echoed]]
            offset = len(self._echoed[echoed]) - sum(map(len, before))
            tokens, told = before + tokens, [*(piece.prompt_logprobs or ()), *told]
        self._offsets[index] = offset + sum(map(len, tokens))
        return text_logprobs(tokens, told, most, offset)
