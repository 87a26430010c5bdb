"""Embeddings of texts, and how similar texts are: requests for them, and what comes back."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import numpy as np

from paceline.core.arrays import F32
from paceline.core.errors import RequestError, RequestFailed
from paceline.core.pooling import LAST
from paceline.engine.api import GenerationRequest, RequestOutput, Usage
from paceline.engine.params import SamplingParams
from paceline.text.chat_template import ChatTemplate
from paceline.text.pooling_files import EmbeddingDefaults
from paceline.text.tokenizer import Tokenizer

Result = TypeVar("Result")
ONE_PASS = SamplingParams(max_tokens=0, temperature=0.0)  # the prompt and nothing else

NO_CLASSES = "this model has no classes: use /v1/embeddings, or LLM.embed"


@dataclass(frozen=True, slots=True)
class Embedding:
    """A text as a vector."""

    embedding: list[float]


@dataclass(frozen=True, slots=True)
class Score:
    """How well two texts match; larger is better."""

    score: float


@dataclass(frozen=True, slots=True)
class Classification:
    """What classes a text has.

    Attributes:
        probs: The probability of each class.
        label: The name of the likeliest class; None if the model names none.
    """

    probs: list[float]
    label: str | None

    @property
    def num_classes(self) -> int:
        return len(self.probs)


@dataclass(frozen=True, slots=True, eq=False)
class Pooled:
    """What a model made of a text, as an array of numbers."""

    data: F32


@dataclass(frozen=True, slots=True)
class PoolingOutput(Generic[Result]):
    """What a text, or two, came to.

    Attributes:
        request_id: Identity of the request.
        result: An `Embedding`, a `Score`, `Classification` or `Pooled`; None if the prompt failed.
        prompt_token_ids: The text as token ids.
        usage: Numbers of tokens.
        error: What went wrong.
    """

    request_id: str
    result: Result | None
    prompt_token_ids: tuple[int, ...]
    usage: Usage
    error: str = ""

    @property
    def outputs(self) -> Result:
        """The result. RequestFailed if there is none, with the error."""
        if self.result is None:
            raise RequestFailed(self.error or "the request ended before it had a result")
        return self.result

    @property
    def finished(self) -> bool:
        """Whether it has ended, which it always has."""
        return True


def pooled(
    generation: GenerationRequest, defaults: EmbeddingDefaults, **changes: Any
) -> GenerationRequest:
    """The same prompt, to be embedded as the model does it, with changes of other fields."""
    if defaults.problem:
        raise RequestError(f"this model makes no embeddings: {defaults.problem}; set pooling")
    if generation.prompt is not None and defaults.prefix:
        generation = replace(generation, prompt=defaults.prefix + generation.prompt)
    return replace(generation, params=ONE_PASS, pooling=defaults.pooling or LAST, **changes)


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
    return float(probabilities(logits, independent=False)[-1])


def probabilities(logits: F32, independent: bool) -> F32:
    """The probability of each class: of one class or of independent ones by itself, and otherwise
    against the others."""
    wide = logits.astype(np.float64)
    if len(logits) == 1 or independent:
        return (1 / (1 + np.exp(-wide))).astype(np.float32)
    weights = np.exp(wide - wide.max())
    return (weights / weights.sum()).astype(np.float32)


def results(
    outputs: Iterable[RequestOutput], made: Callable[[F32], Result]
) -> list[PoolingOutput[Result]]:
    """What finished requests came to; one that failed has an error instead."""
    return [
        PoolingOutput(
            one.request_id,
            None if one.error else made(vector_of(one)),
            one.prompt_token_ids,
            one.usage,
            one.error,
        )
        for one in outputs
    ]


def embeddings(
    outputs: Iterable[RequestOutput], normalize: bool, dimensions: int | None = None
) -> list[PoolingOutput[Embedding]]:
    """The embeddings of finished requests; one that failed has an error instead."""
    return results(
        outputs, lambda one: Embedding(embedding_of(one, normalize, dimensions).tolist())
    )


def require_classes(defaults: EmbeddingDefaults, advice: str = NO_CLASSES) -> None:
    """RequestError if the model has no classes."""
    if not defaults.classifies:
        raise RequestError(advice)


def classification(
    logits: F32, defaults: EmbeddingDefaults, has_activation: bool = True
) -> Classification:
    """What the logits of classes say of a text."""
    values = probabilities(logits, defaults.independent) if has_activation else logits
    best = int(logits.argmax())
    label = defaults.labels[best] if best < len(defaults.labels) else None
    return Classification(values.tolist(), label)


def paired(first: Sequence[str], second: Sequence[str]) -> list[tuple[int, int]]:
    """Which texts are compared: one with each of the others, or each with its counterpart."""
    if len(first) == 1:
        return [(0, index) for index in range(len(second))]
    if len(first) != len(second):
        raise RequestError(
            f"{len(first)} texts cannot be compared with {len(second)}: "
            "give one text and several, or as many of both"
        )
    return [(index, index) for index in range(len(first))]


@dataclass(frozen=True, slots=True)
class ComparisonOptions:
    """How texts are compared.

    variables        of the template of pairs, such as `instruction`
    first_limit      tokens of each first text to keep; 0: all
    second_limit     of each second text
    has_activation   whether scores of a classifier are probabilities; otherwise they are logits
    """

    variables: Mapping[str, Any] | None = None
    first_limit: int = 0
    second_limit: int = 0
    has_activation: bool = True


USUAL = ComparisonOptions()


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
        options: ComparisonOptions = USUAL,
    ) -> None:
        first, second = ([one] if isinstance(one, str) else [*one] for one in (texts, others))
        self._pairs, self._count = paired(first, second), len(first)
        first = [shortened(one, options.first_limit, tokenizer) for one in first]
        second = [shortened(one, options.second_limit, tokenizer) for one in second]
        self._is_classifier, self._options = defaults.classifies, options
        self.prompts = [GenerationRequest(prompt=text) for text in (*first, *second)]
        if self._is_classifier:
            read = PairReader(tokenizer, defaults, options.variables)
            ids = [read(first[left], second[right]) for left, right in self._pairs]
            self.prompts = [GenerationRequest(prompt_token_ids=one) for one in ids]
        elif options.variables:
            raise RequestError(NO_TEMPLATE)
        elif not options.has_activation:
            raise RequestError(
                "use_activation has no effect, because scores of this model are cosines; remove it"
            )

    def scores(self, outputs: Sequence[RequestOutput]) -> "list[PoolingOutput[Score]]":
        if self._is_classifier:
            return classified(outputs, self._options.has_activation)
        return similarities(outputs[: self._count], outputs[self._count :], self._pairs)


NO_TEMPLATE = (
    "instruction and chat_template_kwargs have no effect, because this model has no template for "
    "pairs of texts; remove them"
)
ROLES = re.compile(r"""["']query["'][\s\S]*["']document["']""")  # of a template for pairs
MARKED = "<|im_start|>"  # what a client begins a pair with that it has put into a template itself


class PairReader:
    """Turns two texts into the prompt of a classifier, by its template if it has one."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        defaults: EmbeddingDefaults,
        variables: Mapping[str, Any] | None = None,
    ) -> None:
        own = tokenizer.chat_template or ""
        source = own if ROLES.search(own) else defaults.pair_template
        self._tokenizer, self._variables = tokenizer, variables
        self._template = ChatTemplate.of(tokenizer).replaced(source) if source else None
        if variables and self._template is None:
            raise RequestError(NO_TEMPLATE)

    def __call__(self, first: str, second: str) -> list[int]:
        if self._template is None or first.startswith(MARKED):
            return self._tokenizer.encode_pair(first, second)
        messages = [{"role": "query", "content": first}, {"role": "document", "content": second}]
        text = self._template.render(messages, variables=self._variables)
        return self._tokenizer.encode(text, special=False)


def shortened(text: str, limit: int, tokenizer: Tokenizer) -> str:
    """The text of the first tokens, if it has more than `limit`; 0: the whole text."""
    if not limit or len(ids := tokenizer.encode(text, special=False)) <= limit:
        return text
    return tokenizer.decode(ids[:limit])


def similarities(
    first: Sequence[RequestOutput], second: Sequence[RequestOutput], pairs: list[tuple[int, int]]
) -> list[PoolingOutput[Score]]:
    """Scores of embedded texts, for each pair of indices."""
    found: list[PoolingOutput[Score]] = []
    for left, right in pairs:
        one, other = first[left], second[right]
        error = one.error or other.error
        made = None if error else Score(similarity(vector_of(one), vector_of(other)))
        ids = one.prompt_token_ids + other.prompt_token_ids
        usage = Usage(len(ids), 0, one.usage.cached_tokens + other.usage.cached_tokens)
        found.append(PoolingOutput(other.request_id, made, ids, usage, error))
    return found


def classified(
    outputs: Iterable[RequestOutput], has_activation: bool = True
) -> list[PoolingOutput[Score]]:
    """Scores that a classifier gave to pairs of texts."""
    return results(
        outputs,
        lambda logits: Score(probability(logits) if has_activation else float(logits[-1])),
    )
