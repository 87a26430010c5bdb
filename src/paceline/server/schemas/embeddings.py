"""Bodies of /v1/embeddings, /v1/score and /v1/rerank."""

from base64 import b64encode
from typing import Annotated, Any, Literal

import numpy as np
from msgspec import UNSET, Struct, UnsetType
from pydantic import Field

from paceline.core.arrays import F32
from paceline.server.schemas.constraints import RequestBody
from paceline.server.schemas.requests import Messages, Prompt

MOST_TEXTS = 8192  # of one request
Texts = Annotated[list[str], Field(min_length=1, max_length=MOST_TEXTS)]


class PoolingBody(RequestBody):
    """Fields that all of them share."""

    model: str | None = None
    user: str | None = Field(None, description="the account that the policy `fair` charges")
    priority: int | None = Field(None, description="smaller goes first under policy `priority`")
    cache_salt: str | None = None
    truncate_prompt_tokens: int | None = Field(
        None, ge=-1, description="tokens of each text to keep; -1: as many as the model can read"
    )
    truncation_side: Literal["left", "right"] = Field("right", description="the end to cut off")


class EmbeddingRequest(PoolingBody):
    """Texts or lists of token ids to embed, or a conversation."""

    input: Prompt | None = Field(None, description="a text, token ids, or several of either")
    messages: Messages | None = Field(None, description="a conversation, instead of input")
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(None, ge=1, description="numbers of each embedding to return")
    normalize: bool | None = Field(None, description="to length 1; by default as the model has it")
    add_generation_prompt: bool = Field(False, description="of the chat template")
    chat_template_kwargs: dict[str, Any] | None = None


class ScoreRequest(PoolingBody):
    """Texts to compare: one with several, or each with its counterpart."""

    text_1: str | Texts | None = None
    text_2: str | Texts | None = None
    queries: str | Texts | None = Field(None, description="the same as text_1")
    documents: str | Texts | None = Field(None, description="the same as text_2")


class RerankRequest(PoolingBody):
    """Documents to put in order by how well they match a query."""

    query: str
    documents: Texts
    top_n: int | None = Field(None, ge=0, description="documents to return; 0 or none: all")
    return_documents: bool = Field(True, description="whether the answer has their texts")


class PoolingUsage(Struct, frozen=True):
    """Token counts of a response."""

    prompt_tokens: int
    total_tokens: int
    completion_tokens: int = 0


class EmbeddingItem(Struct, frozen=True):
    """One embedding: numbers, or their bytes in base64."""

    index: int
    embedding: list[float] | str
    object: str = "embedding"


class EmbeddingList(Struct, frozen=True):
    """The response of /v1/embeddings."""

    id: str
    created: int
    model: str
    data: list[EmbeddingItem]
    usage: PoolingUsage
    object: str = "list"


class ScoreItem(Struct, frozen=True):
    """The score of one pair."""

    index: int
    score: float
    object: str = "score"


class ScoreList(Struct, frozen=True):
    """The response of /v1/score."""

    id: str
    created: int
    model: str
    data: list[ScoreItem]
    usage: PoolingUsage
    object: str = "list"


class RankedDocument(Struct, frozen=True):
    """A document of a request, by its place there."""

    text: str


class RerankItem(Struct, frozen=True):
    """A document and its score."""

    index: int
    relevance_score: float
    document: RankedDocument | UnsetType = UNSET


class RerankList(Struct, frozen=True):
    """The response of /v1/rerank."""

    id: str
    model: str
    results: list[RerankItem]
    usage: PoolingUsage


def encoded(vector: F32, encoding: Literal["float", "base64"]) -> list[float] | str:
    """An embedding in the form that a client wants; base64 is of little-endian float32."""
    if encoding == "float":
        return vector.tolist()
    return b64encode(vector.astype(np.dtype("<f4")).tobytes()).decode()
