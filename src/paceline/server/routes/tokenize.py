"""POST /tokenize and /detokenize, GET /tokenizer_info and /v1/models."""

from collections.abc import Sequence
from time import time
from typing import Any

import msgspec
from fastapi import APIRouter, Response

from paceline.engine.api import GenerationRequest
from paceline.server.context import ServerContext
from paceline.server.errors import BAD_REQUEST, ERRORS, ApiError
from paceline.server.parse import check_template, with_documents
from paceline.server.schemas.requests import DetokenizeRequest, TokenizeRequest
from paceline.text.chat_messages import images_of
from paceline.text.tokenizer import Tokenizer


def token_routes(context: ServerContext) -> APIRouter:
    router = APIRouter(tags=["tokens"], responses=ERRORS, route_class=context.body_route)

    @router.post("/tokenize")
    async def tokenize(body: TokenizeRequest) -> Response:
        """The token ids of a text, or of a conversation after the chat template.

        An image counts as the tokens that it becomes.
        """
        context.model(body.model)
        check_tokenize(body)
        check_template(body.chat_template, context.settings.trust_request_chat_template)
        if images_of(body.messages or ()):
            ids = (await context.tokenized(conversation(body))).token_ids
        else:
            ids = await context.long_work.run(encoded, context, body)
        answer = await context.long_work.run(listed, context, ids, body.return_token_strs)
        return Response(answer, media_type="application/json")

    @router.post("/detokenize")
    async def detokenize(body: DetokenizeRequest) -> dict[str, str]:
        """The text of token ids, special ones included."""
        context.model(body.model)
        return {"prompt": await context.long_work.run(decoded, context.tokenizer, body.tokens)}

    @router.get("/tokenizer_info")
    async def describe_tokenizer() -> dict[str, Any]:
        """What a client needs to render and count prompts as the server does."""
        tokenizer = context.tokenizer
        return {
            "tokenizer_class": tokenizer.class_name,
            "vocab_size": tokenizer.vocab_size,
            "bos_token": tokenizer.bos_token or None,
            "eos_token": tokenizer.eos_token or None,
            "eos_token_ids": tokenizer.eos,
            "special_token_ids": sorted(tokenizer.special),
            "chat_template": tokenizer.chat_template,
            "max_model_len": context.engine.max_model_len,
        }

    return router


def decoded(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    largest, vocabulary = max(ids, default=0), tokenizer.vocab_size
    if largest >= vocabulary:
        problem = (
            f"tokens has {largest}, which is out of vocabulary; "
            f"the vocabulary has {vocabulary} tokens"
        )
        raise ApiError(BAD_REQUEST, problem, param="tokens")
    return tokenizer.decode(ids, skip_special=False)


def listed(context: ServerContext, ids: Sequence[int], with_strings: bool) -> bytes:
    """The body of the response, made on a thread because a text may be long."""
    strings = [context.tokenizer.raw_token(id) for id in ids] if with_strings else None
    answer = {
        "count": len(ids),
        "max_model_len": context.engine.max_model_len,
        "tokens": ids,
        "token_strs": strings,
    }
    return msgspec.json.encode(answer)


def check_tokenize(body: TokenizeRequest) -> None:
    if (body.prompt is None) == (body.messages is None):
        raise ApiError(BAD_REQUEST, "give one of prompt and messages", param="prompt")


def encoded(context: ServerContext, body: TokenizeRequest) -> list[int]:
    if body.prompt is not None:
        framed = body.add_special_tokens is not False
        return context.tokenizer.encode(body.prompt, special=framed)
    own = body.chat_template
    template = context.template.replaced(own) if own else context.template
    text = template.render(
        body.messages or (),
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
        tools=body.tools,
        variables=with_documents(body.chat_template_kwargs, body.documents),
    )
    return context.tokenizer.encode(text, special=body.add_special_tokens is True)


def conversation(body: TokenizeRequest) -> GenerationRequest:
    return GenerationRequest(
        messages=body.messages,
        tools=body.tools,
        variables=with_documents(body.chat_template_kwargs, body.documents),
        chat_template=body.chat_template or None,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
        add_special_tokens=body.add_special_tokens,
    )


def model_routes(context: ServerContext) -> APIRouter:
    router = APIRouter(tags=["models"], responses=ERRORS)
    since = int(time())

    def card(name: str) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": since,
            "owned_by": "paceline",
            "root": context.adapters.get(name, context.models[-1]),
            "parent": context.models[0] if name in context.adapters else None,
            "max_model_len": context.engine.max_model_len,
        }

    @router.get("/v1/models")
    async def models() -> dict[str, Any]:
        names = (*context.models, *context.adapters)
        return {"object": "list", "data": [card(name) for name in names]}

    @router.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        return card(context.model(name))

    return router
