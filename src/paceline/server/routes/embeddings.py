"""POST /v1/embeddings, /v1/score and /v1/rerank: texts as vectors, and how well they match."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from time import time

from fastapi import APIRouter, Request, Response
from msgspec import UNSET

from paceline.core.errors import RequestError
from paceline.engine.api import GenerationRequest, RequestOutput
from paceline.engine.embeddings import (
    Comparison,
    PoolingOutput,
    Score,
    embedding_of,
    pooled,
    vector_of,
)
from paceline.server.body import parsed
from paceline.server.client_headers import ClientHeaders
from paceline.server.context import ServerContext
from paceline.server.errors import BAD_REQUEST, ApiError
from paceline.server.parse import each_prompt, unsupported
from paceline.server.respond import GenerationJob, GenerationResponse
from paceline.server.response_writer import WholeWriter
from paceline.server.schemas.completions import encode
from paceline.server.schemas.embeddings import (
    EmbeddingItem,
    EmbeddingList,
    EmbeddingRequest,
    PoolingBody,
    PoolingUsage,
    RankedDocument,
    RerankItem,
    RerankList,
    RerankRequest,
    ScoreItem,
    ScoreList,
    ScoreRequest,
    encoded,
)
from paceline.server.schemas.openapi import ERRORS

Scores = Sequence[PoolingOutput[Score]]


def embedding_routes(context: ServerContext) -> APIRouter:
    router = APIRouter(tags=["embeddings"], responses=ERRORS, route_class=context.body_route)

    @router.post("/v1/embeddings")
    async def create_embedding(body: EmbeddingRequest, request: Request) -> Response:
        """Turn texts into vectors."""
        job = PoolingJob(context, body, request, "embd")
        prompts = await parsed(request, embedding_prompts, context, body)
        return job.response(prompts, lambda outputs: job.embedding_list(outputs, body))

    @router.post("/v1/score")
    @router.post("/score", include_in_schema=False)
    async def create_score(body: ScoreRequest, request: Request) -> Response:
        """Say how well texts match."""
        job = PoolingJob(context, body, request, "score")
        first = texts_of("text_1", body.text_1, body.queries)
        second = texts_of("text_2", body.text_2, body.documents)
        pairs = await parsed(request, compared, context, first, second)
        return job.response(pairs.prompts, lambda outputs: job.score_list(pairs, outputs))

    @router.post("/v1/rerank")
    @router.post("/v2/rerank", include_in_schema=False)
    @router.post("/rerank", include_in_schema=False)
    async def rerank(body: RerankRequest, request: Request) -> Response:
        """Put documents in order by how well they match a query."""
        job = PoolingJob(context, body, request, "rerank")
        pairs = await parsed(request, compared, context, [body.query], body.documents)
        return job.response(pairs.prompts, lambda outputs: job.rerank_list(pairs, outputs, body))

    return router


def embedding_prompts(context: ServerContext, body: EmbeddingRequest) -> list[GenerationRequest]:
    if (body.input is None) == (body.messages is None):
        raise unsupported("input", "give one of input and messages")
    if context.engine.rules.embedding.classifies:
        raise unsupported("model", "it scores two texts at once: use /v1/score or /v1/rerank")
    if body.messages is not None:
        variables, begins = body.chat_template_kwargs, body.add_generation_prompt
        return [
            GenerationRequest(
                messages=body.messages, variables=variables, add_generation_prompt=begins
            )
        ]
    several = each_prompt(body.input)
    if not several or not all(several):
        raise unsupported("input", "it is empty; give at least one token")
    return [
        GenerationRequest(prompt=one)
        if isinstance(one, str)
        else GenerationRequest(prompt_token_ids=one)
        for one in several
    ]


def texts_of(name: str, given: str | list[str] | None, newer: str | list[str] | None) -> list[str]:
    found = given if newer is None else newer
    if found is None:
        raise unsupported(name, "it is missing; give a text or a list of texts")
    return [found] if isinstance(found, str) else found


def compared(context: ServerContext, first: list[str], second: list[str]) -> Comparison:
    """400 if the texts cannot be compared."""
    try:
        return Comparison(first, second, context.tokenizer, context.engine.rules.embedding)
    except RequestError as error:
        raise unsupported("text_2", str(error)) from None


class PoolingJob:
    """One HTTP request: what it asks for, and the bodies of its response."""

    def __init__(
        self, context: ServerContext, body: PoolingBody, request: Request, prefix: str
    ) -> None:
        self._context, self._body = context, body
        self._client = ClientHeaders.of(request.headers, prefix)
        self._model = context.model(body.model)
        self._name = context.name(self._client.request_id)

    def response(
        self,
        prompts: Sequence[GenerationRequest],
        write: Callable[[Sequence[RequestOutput]], bytes],
    ) -> Response:
        body, defaults = self._body, self._context.engine.rules.embedding
        most = self._context.settings.max_prompts
        if len(prompts) > most:
            raise unsupported("input", f"it has {len(prompts)} texts; at most {most} (max_prompts)")
        try:
            generations = [
                replace(
                    pooled(prompt, defaults),
                    priority=body.priority or 0,
                    tenant=body.user or "",
                    cache_salt=body.cache_salt or "",
                    truncate_prompt_tokens=body.truncate_prompt_tokens,
                    truncation_side=body.truncation_side,
                )
                for prompt in prompts
            ]
        except RequestError as error:
            raise ApiError(BAD_REQUEST, str(error), param="model") from None
        job = GenerationJob(self._client, self._name, generations, WholeWriter(write), stream=False)
        return GenerationResponse(self._context, job)

    def embedding_list(self, outputs: Sequence[RequestOutput], body: EmbeddingRequest) -> bytes:
        own = self._context.engine.rules.embedding.normalize
        scaled = own if body.normalize is None else body.normalize
        items = [
            EmbeddingItem(
                place,
                encoded(
                    embedding_of(vector_of(one), scaled, body.dimensions), body.encoding_format
                ),
            )
            for place, one in enumerate(outputs)
        ]
        return encode(EmbeddingList(self._name, int(time()), self._model, items, usage(outputs)))

    def score_list(self, pairs: Comparison, outputs: Sequence[RequestOutput]) -> bytes:
        items = [
            ScoreItem(place, score) for place, score in enumerate(values(pairs.scores(outputs)))
        ]
        return encode(ScoreList(self._name, int(time()), self._model, items, usage(outputs)))

    def rerank_list(
        self, pairs: Comparison, outputs: Sequence[RequestOutput], body: RerankRequest
    ) -> bytes:
        found = values(pairs.scores(outputs))
        order = sorted(range(len(found)), key=lambda place: -found[place])
        results = [
            RerankItem(
                place,
                found[place],
                RankedDocument(body.documents[place]) if body.return_documents else UNSET,
            )
            for place in order[: body.top_n or None]
        ]
        return encode(RerankList(self._name, self._model, results, usage(outputs)))


def values(scores: Scores) -> list[float]:
    return [one.outputs.score for one in scores if one.outputs is not None]


def usage(outputs: Sequence[RequestOutput]) -> PoolingUsage:
    tokens = sum(one.usage.prompt_tokens for one in outputs)
    return PoolingUsage(tokens, tokens)
