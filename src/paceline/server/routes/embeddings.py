"""POST /v1/embeddings, /classify, /pooling, /v1/score and /v1/rerank: texts as vectors, their
classes, and how well they match."""

from collections.abc import Callable, Sequence
from time import time

import numpy as np
from fastapi import APIRouter, Request, Response
from msgspec import UNSET, Struct

from paceline.core.arrays import F32
from paceline.core.errors import RequestError
from paceline.engine.api import GenerationRequest, RequestOutput
from paceline.engine.embeddings import (
    Classification,
    Comparison,
    ComparisonOptions,
    PoolingOutput,
    Score,
    classification,
    embedding_of,
    pooled,
    require_classes,
    vector_of,
)
from paceline.server.body import parsed
from paceline.server.client_headers import ClientHeaders
from paceline.server.context import ServerContext
from paceline.server.errors import BAD_REQUEST, ERRORS, ApiError
from paceline.server.parse import each_prompt, unsupported
from paceline.server.replies.generation_response import GenerationJob, GenerationResponse
from paceline.server.replies.response_writer import WholeWriter
from paceline.server.schemas.completions import encode
from paceline.server.schemas.embeddings import (
    ClassifyRequest,
    ClassItem,
    ComparingBody,
    EmbeddingItem,
    EmbeddingRequest,
    EncodedBody,
    PooledList,
    PoolingBody,
    PoolingItem,
    PoolingRequest,
    PoolingUsage,
    RankedDocument,
    RerankItem,
    RerankList,
    RerankRequest,
    ScoreItem,
    ScoreRequest,
    Text,
    TextsBody,
    encoded,
)
from paceline.text.pooling_files import EmbeddingDefaults

Scores = Sequence[PoolingOutput[Score]]
EMBED, CLASSIFY = "embed", "classify"
TASKS = (EMBED, CLASSIFY)


def embedding_routes(context: ServerContext) -> APIRouter:
    router = APIRouter(tags=["embeddings"], responses=ERRORS, route_class=context.body_route)

    @router.post("/v1/embeddings")
    async def create_embedding(body: EmbeddingRequest, request: Request) -> Response:
        """Turn texts into vectors."""
        job = PoolingJob(context, body, request, "embd")
        require_embeddings(context)
        prompts = await parsed(request, text_prompts, body)
        return job.response(prompts, lambda outputs: job.embedding_list(outputs, body))

    @router.post("/classify")
    async def classify(body: ClassifyRequest, request: Request) -> Response:
        """Say what classes texts have."""
        job = PoolingJob(context, body, request, "classify")
        require_classifier(context)
        prompts = await parsed(request, text_prompts, body)
        return job.response(prompts, job.class_list)

    @router.post("/pooling")
    async def pool(body: PoolingRequest, request: Request) -> Response:
        """Turn texts into vectors or into probabilities of classes, as the model does it."""
        job = PoolingJob(context, body, request, "pool")
        check_task(context, body)
        prompts = await parsed(request, text_prompts, body)
        return job.response(prompts, lambda outputs: job.pooling_list(outputs, body))

    @router.post("/v1/score")
    @router.post("/score", include_in_schema=False)
    async def create_score(body: ScoreRequest, request: Request) -> Response:
        """Say how well texts match."""
        job = PoolingJob(context, body, request, "score")
        first = texts_of("text_1", body.text_1, body.queries, body.data_1)
        second = texts_of("text_2", body.text_2, body.documents, body.items, body.data_2)
        pairs = await parsed(request, compared, context, body, first, second)
        return job.response(pairs.prompts, lambda outputs: job.score_list(pairs, outputs))

    @router.post("/v1/rerank")
    @router.post("/v2/rerank", include_in_schema=False)
    @router.post("/rerank", include_in_schema=False)
    async def rerank(body: RerankRequest, request: Request) -> Response:
        """Put documents in order by how well they match a query."""
        job = PoolingJob(context, body, request, "rerank")
        query, documents = texts_of("query", body.query), texts_of("documents", body.documents)
        pairs = await parsed(request, compared, context, body, query, documents)
        return job.response(
            pairs.prompts, lambda outputs: job.rerank_list(pairs, outputs, body, documents)
        )

    return router


def require_embeddings(context: ServerContext) -> None:
    if context.engine.rules.embedding.classifies:
        raise unsupported(
            "model",
            "it has classes, and makes no embeddings: use /classify, /v1/score or /v1/rerank",
        )


def require_classifier(context: ServerContext) -> None:
    try:
        require_classes(context.engine.rules.embedding)
    except RequestError as error:
        raise unsupported("model", str(error)) from None


def check_task(context: ServerContext, body: PoolingRequest) -> None:
    """400 if the model does not do what is asked for."""
    classifies = context.engine.rules.embedding.classifies
    if body.task not in (None, *TASKS):
        raise unsupported("task", f"{body.task!r} is not supported; use one of {', '.join(TASKS)}")
    if body.task == CLASSIFY:
        require_classifier(context)
    if body.task == EMBED:
        require_embeddings(context)
    if classifies and (body.dimensions is not None or body.normalize is not None):
        raise unsupported("dimensions", "they are of embeddings, and this model has classes")


def text_prompts(body: TextsBody) -> list[GenerationRequest]:
    if (body.input is None) == (body.messages is None):
        raise unsupported("input", "give one of input and messages")
    if body.messages is not None:
        return [
            GenerationRequest(
                messages=body.messages,
                variables=body.chat_template_kwargs,
                add_generation_prompt=body.add_generation_prompt,
                continue_final_message=body.continue_final_message,
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


def texts_of(name: str, *given: Text | list[Text] | None) -> list[str]:
    """The texts of the last of several fields that is there."""
    found = next((one for one in reversed(given) if one is not None), None)
    if found is None:
        raise unsupported(name, "it is missing; give a text or a list of texts")
    listed = found if isinstance(found, list) else [found]
    texts = [one if isinstance(one, str) else one.whole for one in listed]
    if None in texts:
        raise unsupported(name, "an object has no text; give it as text, or as parts in content")
    return [one for one in texts if one is not None]


def compared(
    context: ServerContext, body: ComparingBody, first: list[str], second: list[str]
) -> Comparison:
    """400 if the texts cannot be compared."""
    options = ComparisonOptions(
        body.variables,
        body.max_tokens_per_query,
        body.max_tokens_per_doc,
        body.use_activation is not False,
    )
    try:
        defaults = context.engine.rules.embedding
        return Comparison(first, second, context.tokenizer, defaults, options)
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
        self._name = context.open_requests.name(self._client.request_id)

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
                pooled(
                    prompt,
                    defaults,
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

    @property
    def _defaults(self) -> EmbeddingDefaults:
        return self._context.engine.rules.embedding

    def embedding_list(self, outputs: Sequence[RequestOutput], body: EncodedBody) -> bytes:
        items = [
            EmbeddingItem(place, encoded(vector, body.encoding_format))
            for place, vector in enumerate(self._embeddings(outputs, body))
        ]
        return self._listed(items, outputs)

    def _listed(self, items: Sequence[Struct], outputs: Sequence[RequestOutput]) -> bytes:
        return encode(PooledList(self._name, int(time()), self._model, items, usage(outputs)))

    def _embeddings(self, outputs: Sequence[RequestOutput], body: EncodedBody) -> list[F32]:
        scaled = self._defaults.normalize if body.scales is None else body.scales
        return [embedding_of(vector_of(one), scaled, body.dimensions) for one in outputs]

    def pooling_list(self, outputs: Sequence[RequestOutput], body: PoolingRequest) -> bytes:
        if self._defaults.classifies:
            vectors = [np.array(one.probs, np.float32) for one in self._classes(outputs)]
        else:
            vectors = self._embeddings(outputs, body)
        items = [
            PoolingItem(place, encoded(vector, body.encoding_format))
            for place, vector in enumerate(vectors)
        ]
        return self._listed(items, outputs)

    def class_list(self, outputs: Sequence[RequestOutput]) -> bytes:
        items = [
            ClassItem(place, one.label, one.probs, len(one.probs))
            for place, one in enumerate(self._classes(outputs))
        ]
        return self._listed(items, outputs)

    def _classes(self, outputs: Sequence[RequestOutput]) -> list[Classification]:
        has_activation = self._body.use_activation is not False
        return [classification(vector_of(one), self._defaults, has_activation) for one in outputs]

    def score_list(self, pairs: Comparison, outputs: Sequence[RequestOutput]) -> bytes:
        items = [
            ScoreItem(place, score) for place, score in enumerate(values(pairs.scores(outputs)))
        ]
        return self._listed(items, outputs)

    def rerank_list(
        self,
        pairs: Comparison,
        outputs: Sequence[RequestOutput],
        body: RerankRequest,
        documents: Sequence[str],
    ) -> bytes:
        found = values(pairs.scores(outputs))
        order = sorted(range(len(found)), key=lambda place: -found[place])
        results = [
            RerankItem(
                place,
                found[place],
                RankedDocument(documents[place]) if body.return_documents else UNSET,
            )
            for place in order[: body.top_n or None]
        ]
        return encode(RerankList(self._name, self._model, results, usage(outputs)))


def values(scores: Scores) -> list[float]:
    return [one.result.score for one in scores if one.result is not None]


def usage(outputs: Sequence[RequestOutput]) -> PoolingUsage:
    tokens = sum(one.usage.prompt_tokens for one in outputs)
    return PoolingUsage(tokens, tokens)
