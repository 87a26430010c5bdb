"""Embeddings of texts, and how similar texts are: requests for them, and what comes back."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import numpy as np

from paceline.core.arrays import F32
from paceline.core.errors import RequestError, RequestFailed
from paceline.core.pooling import LAST
from paceline.engine.api import GenerationRequest, RequestOutput, Usage
from paceline.engine.params import SamplingParams
from paceline.text.pooling_files import EmbeddingDefaults
from paceline.text.tokenizer import Tokenizer

Result = TypeVar("Result")
ONE_PASS = SamplingParams(max_tokens=0, temperature=0.0)  # the prompt and nothing else


@dataclass(frozen=True, slots=True)
class Embedding:
    """A text as a vector."""

    embedding: list[float]


@dataclass(frozen=True, slots=True)
class Score:
    """How well two texts match; larger is better."""

    score: float


@dataclass(frozen=True, slots=True)
class PoolingOutput(Generic[Result]):
    """What a text, or two, came to.

    Attributes:
        request_id: Identity of the request.
        outputs: An `Embedding` or a `Score`.
        prompt_token_ids: The text as token ids.
        usage: Numbers of tokens.
        error: What went wrong; `outputs` is None then.
    """

    request_id: str
    outputs: Result | None
    prompt_token_ids: tuple[int, ...]
    usage: Usage
    error: str = ""


def pooled(generation: GenerationRequest, defaults: EmbeddingDefaults) -> GenerationRequest:
    """The same prompt, to be embedded as the model does it."""
    if defaults.problem:
        raise RequestError(f"this model makes no embeddings: {defaults.problem}; set pooling")
    return replace(generation, params=ONE_PASS, pooling=defaults.pooling or LAST)


def vector_of(output: RequestOutput) -> F32:
    """What the model made of a text. RequestFailed if it failed."""
    if output.pooled is None:
        raise RequestFailed(output.error or "the request ended before it had an embedding")
    return output.pooled


def embedding_of(vector: F32, normalize: bool, dimensions: int | None = None) -> F32:
    """A vector in the form that a client wants. RequestError if it has no such form."""
    if dimensions is not None and not 1 <= dimensions <= len(vector):
        raise RequestError(f"dimensions is {dimensions}; it must lie in 1..{len(vector)}")
    return unit(vector[:dimensions]) if normalize else vector[:dimensions]


def unit(vector: F32) -> F32:
    """The vector with length 1; a vector of zeros as it is."""
    length = float(np.linalg.norm(vector))
    return vector / np.float32(length) if length else vector


def similarity(one: F32, other: F32) -> float:
    """The cosine of the angle between two vectors."""
    return float(unit(one) @ unit(other))


def probability(logits: F32) -> float:
    """The score of a classifier: of its only class, or of its last one against the others."""
    if len(logits) == 1:
        return float(1 / (1 + np.exp(-np.float64(logits[0]))))
    weights = np.exp(logits.astype(np.float64) - logits.max())
    return float(weights[-1] / weights.sum())


def embeddings(
    outputs: Iterable[RequestOutput], normalize: bool, dimensions: int | None = None
) -> list[PoolingOutput[Embedding]]:
    """The embeddings of finished requests; one that failed has an error instead."""
    found: list[PoolingOutput[Embedding]] = []
    for one in outputs:
        made = None
        if not one.error:
            made = Embedding(embedding_of(vector_of(one), normalize, dimensions).tolist())
        found.append(
            PoolingOutput(one.request_id, made, one.prompt_token_ids, one.usage, one.error)
        )
    return found


def paired(first: Sequence[str], second: Sequence[str]) -> list[tuple[int, int]]:
    """Which texts are compared: one with each of the others, or each with its counterpart."""
    if len(first) == 1:
        return [(0, place) for place in range(len(second))]
    if len(first) != len(second):
        raise RequestError(
            f"{len(first)} texts cannot be compared with {len(second)}: "
            "give one text and several, or as many of both"
        )
    return [(place, place) for place in range(len(first))]


class Comparison:
    """Pairs of texts, the prompts that they need, and their scores.

    A classifier reads the two texts of a pair as one prompt. Another model embeds each text.
    """

    def __init__(
        self,
        texts: str | Sequence[str],
        others: str | Sequence[str],
        tokenizer: Tokenizer,
        defaults: EmbeddingDefaults,
    ) -> None:
        first, second = ([one] if isinstance(one, str) else [*one] for one in (texts, others))
        self._pairs, self._count = paired(first, second), len(first)
        self._is_classifier = defaults.classifies
        self.prompts = [GenerationRequest(prompt=text) for text in (*first, *second)]
        if self._is_classifier:
            pairs = [(first[left], second[right]) for left, right in self._pairs]
            ids = [tokenizer.encode_pair(*pair) for pair in pairs]
            self.prompts = [GenerationRequest(prompt_token_ids=one) for one in ids]

    def scores(self, outputs: Sequence[RequestOutput]) -> "list[PoolingOutput[Score]]":
        if self._is_classifier:
            return classified(outputs)
        return similarities(outputs[: self._count], outputs[self._count :], self._pairs)


def similarities(
    first: Sequence[RequestOutput], second: Sequence[RequestOutput], pairs: list[tuple[int, int]]
) -> list[PoolingOutput[Score]]:
    """Scores of embedded texts, for each pair of places."""
    found: list[PoolingOutput[Score]] = []
    for left, right in pairs:
        one, other = first[left], second[right]
        error = one.error or other.error
        made = None if error else Score(similarity(vector_of(one), vector_of(other)))
        ids = one.prompt_token_ids + other.prompt_token_ids
        usage = Usage(len(ids), 0, one.usage.cached_tokens + other.usage.cached_tokens)
        found.append(PoolingOutput(other.request_id, made, ids, usage, error))
    return found


def classified(outputs: Iterable[RequestOutput]) -> list[PoolingOutput[Score]]:
    """Scores that a classifier gave to pairs of texts."""
    found: list[PoolingOutput[Score]] = []
    for one in outputs:
        made = None if one.error else Score(probability(vector_of(one)))
        found.append(
            PoolingOutput(one.request_id, made, one.prompt_token_ids, one.usage, one.error)
        )
    return found
