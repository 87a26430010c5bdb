"""Prompts of pairs of texts, and what logits of classes mean."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline import RequestError
from paceline.engine.embeddings import Comparison, ComparisonOptions, classification
from paceline.text.pooling_files import RERANKING, EmbeddingDefaults
from paceline.text.tokenizer import Tokenizer
from tests.runner.encoders.support import tokenizer

ROLES = (
    "{% for m in messages %}{% if m.role == 'query' %}q {{ m.content }} {{ instruction }}"
    "{% elif m.role == 'document' %} d {{ m.content }}{% endif %}{% endfor %}"
)
PAIRS = EmbeddingDefaults(classifies=True)
RERANKER = replace(PAIRS, pair_template=RERANKING)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tokenizer().save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def prompt_of(folder: Path, defaults: EmbeddingDefaults, template: str = "", **more: Any) -> str:
    words = Tokenizer.load(folder, template or None)
    options = ComparisonOptions(**more)
    (prompt,) = Comparison("the cat sat", "a dog on the mat", words, defaults, options).prompts
    assert prompt.prompt_token_ids is not None
    return words.decode(prompt.prompt_token_ids, skip_special=False)


def test_pairs_follow_each_other_without_a_template(folder: Path) -> None:
    assert prompt_of(folder, PAIRS) == "[CLS] the cat sat[SEP] a dog on the mat[SEP]"
    cut = prompt_of(folder, PAIRS, first_limit=2, second_limit=1)
    assert cut == "[CLS] the cat[SEP] a[SEP]"
    with pytest.raises(RequestError, match="no template for pairs"):
        prompt_of(folder, PAIRS, variables={"instruction": "on"})


def test_a_template_for_pairs_gets_its_variables(folder: Path) -> None:
    found = prompt_of(folder, RERANKER, variables={"instruction": "sat sat"})
    assert "[CLS]" not in found
    assert found.index("sat sat") < found.index("the cat sat") < found.index("a dog on the mat")
    own = prompt_of(folder, RERANKER, ROLES, variables={"instruction": "sat sat"})
    assert own == "[UNK] the cat sat sat sat [UNK] a dog on the mat"


def test_a_template_for_conversations_is_not_one_for_pairs(folder: Path) -> None:
    chat = "{% for m in messages %}{{ m.content }}{% endfor %}"
    assert prompt_of(folder, PAIRS, chat) == prompt_of(folder, PAIRS)


def test_probabilities_of_classes() -> None:
    logits = np.array([0.0, 2.0], np.float32)
    named = replace(PAIRS, labels=("no", "yes"))
    found = classification(logits, named)
    assert found.label == "yes"
    assert sum(found.probs) == pytest.approx(1.0)
    apart = classification(logits, replace(named, independent=True))
    assert apart.probs == pytest.approx([0.5, 1 / (1 + np.exp(-2.0))])
    assert classification(logits[1:], named).probs == pytest.approx([1 / (1 + np.exp(-2.0))])
    assert classification(logits, PAIRS, has_activation=False).probs == [0.0, 2.0]
    assert classification(logits, PAIRS).label is None
