"""What steps report of prompts: hidden states that become one vector, and scores of tokens."""

from dataclasses import dataclass

import numpy as np

from paceline.core.arrays import F32, I32

LAST, MEAN, CLS = "last", "mean", "cls"
POOLING_KINDS = (LAST, MEAN, CLS)  # of the last position, of all, of the first

ENCODERS = ("Bert", "DistilBert", "MPNet", "ModernBert", "Roberta", "XLMRoberta")
CLASSIFIER = "ForSequenceClassification"
ENCODER_ENDINGS = ("Model", "ForMaskedLM", CLASSIFIER)


def encoder_family(architecture: str) -> str | None:
    """The family of an encoder by the name that HF has for it; None if it is none."""
    for ending in ENCODER_ENDINGS:
        if (family := architecture.removesuffix(ending)) != architecture and family in ENCODERS:
            return family
    return None


@dataclass(frozen=True, slots=True, eq=False)
class PooledSpan:
    """The sum of the hidden states of positions that follow each other in a prompt.

    A step reports one for each row that computes positions which the request pools. The serial is
    that of the sequence which computed them. The same ones may be reported again.
    """

    request_id: str
    serial: int
    first: int  # place of the first position in the prompt
    count: int  # number of positions
    total: F32  # [width]


@dataclass(frozen=True, slots=True, eq=False)
class DenseLayer:
    """activation(weight @ vector + bias), of a vector that stands for a whole text."""

    weight: F32  # [outputs, inputs]
    bias: F32 | None = None  # [outputs]
    activation: str = ""  # tanh, relu or sigmoid

    def __call__(self, vector: F32) -> F32:
        found = self.weight @ vector
        if self.bias is not None:
            found = found + self.bias
        match self.activation:
            case "tanh":
                return np.tanh(found)
            case "relu":
                return np.maximum(found, np.float32(0))
            case "sigmoid":
                return np.float32(1) / (np.float32(1) + np.exp(-found))
            case _:
                return found


class PooledMean:
    """The mean of the spans of one request, as they arrive, and what layers make of it.

    A sequence that is preempted resumes at the beginning, or where a span began. The spans from
    there on come again and replace the ones before.
    """

    def __init__(self, dense: tuple[DenseLayer, ...] = ()) -> None:
        self._spans: list[PooledSpan] = []
        self._dense = dense

    def add(self, span: PooledSpan) -> None:
        while self._spans and self._spans[-1].first >= span.first:
            self._spans.pop()
        self._spans.append(span)

    def value(self) -> F32 | None:
        """None before the first span."""
        if not self._spans:
            return None
        total = sum((span.total for span in self._spans[1:]), start=self._spans[0].total)
        found = total / np.float32(sum(span.count for span in self._spans))
        for layer in self._dense:
            found = layer(found)
        return found


@dataclass(frozen=True, slots=True, eq=False)
class PromptScores:
    """How likely the model finds tokens of a prompt that follow each other, each in its place.

    The serial is that of the sequence which computed them. The same ones may be reported again.
    """

    request_id: str
    serial: int
    first: int  # place of the first of these tokens in the prompt; at least 1
    logprob: F32  # [tokens]
    rank: I32  # [tokens]; 1 for the likeliest
    ids: I32  # [tokens, alternatives]; best first
    values: F32  # [tokens, alternatives]
