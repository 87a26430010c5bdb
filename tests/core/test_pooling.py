"""Means of spans that may come again, and the requests that want them."""

from typing import Any

import numpy as np
import pytest

from paceline.core.constraint import Constraint
from paceline.core.errors import RequestError
from paceline.core.pooling import DenseLayer, PooledMean, PooledSpan, encoder_family
from paceline.core.request import Request


def span(first: int, *values: float) -> PooledSpan:
    return PooledSpan("a", 1, first, len(values), np.array([sum(values)], np.float32))


@pytest.mark.parametrize(
    ("spans", "mean"),
    [
        ([span(0, 1.0, 3.0)], 2.0),
        ([span(0, 1.0, 3.0), span(2, 5.0)], 3.0),
        ([span(0, 9.0, 9.0), span(2, 9.0), span(0, 1.0), span(1, 3.0, 5.0)], 3.0),
        ([span(0, 1.0, 3.0), span(2, 9.0, 9.0), span(2, 5.0)], 3.0),
        ([span(6, 4.0)], 4.0),
    ],
    ids=["one", "two", "from the beginning again", "from a boundary again", "the last"],
)
def test_spans_that_come_again_replace_earlier_ones(spans: list[PooledSpan], mean: float) -> None:
    found = PooledMean()
    assert found.value() is None
    for one in spans:
        found.add(one)
    value = found.value()
    assert value is not None
    assert value.tolist() == [mean]
    assert value.dtype == np.float32


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"pooling": "max"}, "pooling is 'max'; it must be one of last, mean, cls"),
        ({"pooling": "last", "max_tokens": 2}, "max_tokens 1, one sequence and no constraint"),
        ({"pooling": "last", "n": 2}, "max_tokens 1, one sequence and no constraint"),
        ({"pooling": "last", "constraint": Constraint.regex("a")}, "no constraint"),
        ({"pooling": "mean"}, "'mean' needs the first position: set reads_cache to False"),
        ({"pooling": "cls"}, "'cls' needs the first position"),
    ],
)
def test_requests_that_cannot_be_pooled(fields: dict[str, Any], complaint: str) -> None:
    with pytest.raises(RequestError, match=complaint):
        Request(id="a", prompt=[1, 2], **{"max_tokens": 1, **fields})


def test_dense_layers_follow_the_mean() -> None:
    weight, bias = np.array([[2.0], [-1.0]], np.float32), np.array([0.0, 1.0], np.float32)
    activated = {
        "": [4.0, -1.0],
        "relu": [4.0, 0.0],
        "tanh": np.tanh([4.0, -1.0]),
        "sigmoid": 1 / (1 + np.exp([-4.0, 1.0])),
    }
    for activation, expected in activated.items():
        mean = PooledMean((DenseLayer(weight, bias, activation),))
        assert mean.value() is None
        mean.add(span(0, 1.0, 3.0))
        value = mean.value()
        assert value is not None
        np.testing.assert_allclose(value, expected, rtol=1e-6)
    unbiased = PooledMean((DenseLayer(weight),))
    unbiased.add(span(0, 2.0))
    assert np.array_equal(unbiased.value(), [4.0, -2.0])


def test_encoders_are_known_by_their_names() -> None:
    known = {"BertModel": "Bert", "ModernBertForMaskedLM": "ModernBert"}
    known |= {"MPNetForSequenceClassification": "MPNet", "XLMRobertaModel": "XLMRoberta"}
    assert {name: encoder_family(name) for name in known} == known
    assert [encoder_family(name) for name in ("Bert", "LlamaModel", "BertForCausalLM")] == [
        None
    ] * 3
