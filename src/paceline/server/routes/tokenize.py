"""POST /tokenize and /detokenize, and the list of models: what a router asks an engine."""

from time import time
from typing import Any

import msgspec
from fastapi import APIRouter, Response
from fastapi.concurrency import run_in_threadpool

from paceline.server.context import Desk
from paceline.server.errors import BAD_REQUEST, Refusal
from paceline.server.schemas.openapi import ERRORS
from paceline.server.schemas.requests import DetokenizeRequest, TokenizeRequest


def token_routes(desk: Desk) -> APIRouter:
    router = APIRouter(tags=["tokens"], responses=ERRORS)

    @router.post("/tokenize")
    async def tokenize(body: TokenizeRequest) -> Response:
        """The token ids of a text, or of a conversation as the model reads it."""
        desk.model(body.model)
        told = await run_in_threadpool(tokenized, desk, body)
        return Response(told, media_type="application/json")

    @router.post("/detokenize")
    async def detokenize(body: DetokenizeRequest) -> dict[str, str]:
        """The text of token ids, special ones included."""
        desk.model(body.model)
        largest, words = max(body.tokens, default=0), desk.tokenizer.vocab_size
        if largest >= words:
            problem = f"tokens has {largest}; the vocabulary has {words} words"
            raise Refusal(BAD_REQUEST, problem, param="tokens")
        return {"prompt": desk.tokenizer.decode(body.tokens, skip_special=False)}

    return router


def tokenized(desk: Desk, body: TokenizeRequest) -> bytes:
    """Written here, since a text may be long."""
    ids = encoded(desk, body)
    strings = [desk.tokenizer.token(id) for id in ids] if body.return_token_strs else None
    told = {
        "count": len(ids),
        "max_model_len": desk.engine.max_model_len,
        "tokens": ids,
        "token_strs": strings,
    }
    return msgspec.json.encode(told)


def encoded(desk: Desk, body: TokenizeRequest) -> list[int]:
    if (body.prompt is None) == (body.messages is None):
        raise Refusal(BAD_REQUEST, "give one of prompt and messages", param="prompt")
    if body.prompt is not None:
        return desk.tokenizer.encode(body.prompt, special=body.add_special_tokens)
    text = desk.template.render(
        body.messages or (),
        add_generation_prompt=body.add_generation_prompt,
        tools=body.tools,
        variables=body.chat_template_kwargs,
    )
    return desk.tokenizer.encode(text, special=False)


def model_routes(desk: Desk) -> APIRouter:
    router = APIRouter(tags=["models"], responses=ERRORS)
    since = int(time())

    def card(name: str) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": since,
            "owned_by": "paceline",
            "root": desk.models[0],
            "max_model_len": desk.engine.max_model_len,
        }

    @router.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [card(name) for name in desk.models]}

    @router.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        return card(desk.model(name))

    return router
