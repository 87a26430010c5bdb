"""POST /v1/completions: texts."""

from collections.abc import Sequence
from time import time

from fastapi import APIRouter, Request, Response
from msgspec import UNSET

from paceline.engine.api import Ask, Piece, RequestOutput, Stream
from paceline.server.answering import Answering, Work
from paceline.server.asking import completion_asks
from paceline.server.caller import Caller
from paceline.server.desk import Desk
from paceline.server.documents import GENERATED
from paceline.server.envelope import Envelope
from paceline.server.schema import CompletionRequest
from paceline.server.shapes import DONE, Completion, TextChoice, encode, event, text_logprobs


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
        form = CompletionForm(envelope, asks[0].params.n, echoed)
        return Answering(desk, Work(caller, name, asks, form, body.stream is True))

    return router


def prompt_text(desk: Desk, ask: Ask) -> str:
    return ask.prompt or desk.tokenizer.decode(ask.prompt_token_ids or ())


class CompletionForm:
    """The n choices of the first prompt come first, then those of the second, and so on.

    `_echoed` has the texts of the prompts, if they begin the texts of the choices.
    """

    def __init__(self, envelope: Envelope, n: int, echoed: Sequence[str]) -> None:
        self._envelope, self._n, self._echoed = envelope, n, echoed
        self._created = int(time())
        self._offsets: dict[int, int] = {}  # characters of tokens told so far, by choice

    def opening(self, streams: Sequence[Stream]) -> bytes:
        self._envelope.count_prompts(streams)
        echoes = [
            TextChoice(part * self._n + at, text)
            for part, text in enumerate(self._echoed)
            for at in range(self._n)
        ]
        return b"".join(map(self._event, echoes))

    def piece(self, part: int, piece: Piece) -> bytes:
        self._envelope.count(piece)
        if not (piece.text or piece.finish_reason or piece.logprobs):
            return b""
        return self._event(self._choice(part, piece, piece.text))

    def closing(self, outputs: Sequence[RequestOutput]) -> bytes:
        envelope = self._envelope
        if not envelope.closes:
            return DONE
        usage, timings = envelope.closing_usage(outputs), envelope.spent(outputs)
        last = Completion(envelope.id, self._created, envelope.model, (), usage, timings)
        return event(last) + DONE

    def whole(self, outputs: Sequence[RequestOutput]) -> bytes:
        envelope = self._envelope
        choices = [
            self._choice(part, answer, self._echo(part) + answer.text)
            for part, output in enumerate(outputs)
            for answer in output.outputs
        ]
        usage, timings = envelope.usage(outputs), envelope.spent(outputs)
        model, created = envelope.model, self._created
        return encode(Completion(envelope.id, created, model, choices, usage, timings))

    def _echo(self, part: int) -> str:
        return self._echoed[part] if self._echoed else ""

    def _choice(self, part: int, piece: Piece, text: str) -> TextChoice:
        index = part * self._n + piece.index
        offset = self._offsets.get(index, 0)
        if piece.logprobs:
            self._offsets[index] = offset + sum(len(one.chosen.text) for one in piece.logprobs)
        return TextChoice(
            index,
            text,
            text_logprobs(piece.logprobs, offset),
            piece.finish_reason,
            piece.stop_reason if piece.finish_reason else UNSET,
        )

    def _event(self, choice: TextChoice) -> bytes:
        envelope = self._envelope
        usage = envelope.running_usage()
        return event(Completion(envelope.id, self._created, envelope.model, (choice,), usage))
