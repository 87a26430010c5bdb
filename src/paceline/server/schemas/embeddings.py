"""Bodies of /v1/embeddings, /v1/score, /v1/rerank, /classify and /pooling."""

from base64 import b64encode
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
from msgspec import UNSET, Struct, UnsetType
from pydantic import Field

from paceline.core.arrays import F32
from paceline.server.schemas.constraints import REFUSED, RequestBody, fixed, refused
from paceline.server.schemas.requests import Messages, Prompt

MOST_TEXTS = 8192  # of one request
Padded = Annotated[None, fixed("texts are not padded", "do_not_pad"), REFUSED]
Images = Annotated[None, refused("texts are read, and no images"), REFUSED]
Floats = Annotated[None, fixed("bytes in base64 are of float32", "float32"), REFUSED]
LittleEndian = Annotated[
    None, fixed("bytes in base64 are little-endian", "native", "little"), REFUSED
]


class DocumentPart(RequestBody):
    """A part of a text; images are refused."""

    type: Literal["text"]
    text: str


class TextDocument(RequestBody):
    """A text in an object, as Cohere and Jina send it; or in parts, as vLLM takes it."""

    text: str | None = None
    content: Annotated[list[DocumentPart], Field(max_length=MOST_TEXTS)] | None = None

    @property
    def whole(self) -> str | None:
        """None if there is no text."""
        if self.text is not None or self.content is None:
            return self.text
        return "".join(part.text for part in self.content)


Text = str | TextDocument
Texts = Annotated[list[Text], Field(min_length=1, max_length=MOST_TEXTS)]


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
    use_activation: bool | None = Field(
        None, description="false: vectors as long as they are, and logits instead of probabilities"
    )
    padding: Padded = None
    mm_processor_kwargs: Images = None


class TextsBody(PoolingBody):
    """Texts or lists of token ids, or a conversation."""

    input: Prompt | None = Field(None, description="a text, token ids, or several of either")
    messages: Messages | None = Field(None, description="a conversation, instead of input")
    add_generation_prompt: bool = Field(False, description="of the chat template")
    continue_final_message: bool = Field(False, description="of the chat template")
    chat_template_kwargs: dict[str, Any] | None = None


class EncodedBody(TextsBody):
    """The form of vectors in a response."""

    encoding_format: Literal["float", "base64"] = "float"
    embed_dtype: Floats = None
    endianness: LittleEndian = None
    dimensions: int | None = Field(None, ge=1, description="numbers of each embedding to return")
    normalize: bool | None = Field(None, description="to length 1; by default as the model has it")

    @property
    def scales(self) -> bool | None:
        """Whether embeddings have length 1; None: as the model has it."""
        return self.use_activation if self.normalize is None else self.normalize


class EmbeddingRequest(EncodedBody):
    """Texts to embed."""


class ClassifyRequest(TextsBody):
    """Texts to classify."""


class PoolingRequest(EncodedBody):
    """Texts to embed or to classify, as the model does it."""

    task: str | None = Field(None, description="embed or classify; by default as the model does")


class ComparingBody(PoolingBody):
    """Fields of requests that compare texts."""

    max_tokens_per_query: int = Field(0, ge=0, description="tokens to keep; 0: all")
    max_tokens_per_doc: int = Field(0, ge=0, description="tokens to keep; 0: all")
    instruction: str | None = Field(None, description="of the template for pairs of texts")
    chat_template_kwargs: dict[str, Any] | None = Field(
        None, description="variables of the template for pairs of texts"
    )

    @property
    def variables(self) -> dict[str, Any]:
        """Of the template for pairs."""
        own = {} if self.instruction is None else {"instruction": self.instruction}
        return {**own, **(self.chat_template_kwargs or {})}


class ScoreRequest(ComparingBody):
    """Texts to compare: one with several, or each with its counterpart."""

    text_1: Texts | Text | None = None
    text_2: Texts | Text | None = None
    queries: Texts | Text | None = Field(None, description="the same as text_1")
    documents: Texts | Text | None = Field(None, description="the same as text_2")
    items: Texts | Text | None = Field(None, description="the same as text_2")
    data_1: Texts | Text | None = Field(None, description="the same as text_1")
    data_2: Texts | Text | None = Field(None, description="the same as text_2")


class RerankRequest(ComparingBody):
    """Documents to put in order by how well they match a query."""

    query: Text
    documents: Texts | Text
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


class PoolingItem(Struct, frozen=True):
    """One embedding, or the probabilities of classes: numbers, or their bytes in base64."""

    index: int
    data: list[float] | str
    object: str = "pooling"


class ClassItem(Struct, frozen=True):
    """The likeliest class of a text, and the probabilities of all."""

    index: int
    label: str | None
    probs: list[float]
    num_classes: int


class ScoreItem(Struct, frozen=True):
    """The score of one pair."""

    index: int
    score: float
    object: str = "score"


class PooledList(Struct, frozen=True):
    """The response of /v1/embeddings, /pooling, /classify and /v1/score."""

    id: str
    created: int
    model: str
    data: Sequence[Struct]
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
