"""Log-probabilities of a prompt that are spelled out when they are read."""

import pickle

import numpy as np

from paceline.core.pooling import PromptScores
from paceline.engine.api import Alternative, PromptLogprob
from paceline.engine.frontend.entries import PromptEntries
from tests.engine.support import tokenizer


def entry(id: int, logprob: float, rank: int, other: int) -> PromptLogprob:
    def spelled(id: int, logprob: float) -> Alternative:
        token = tokenizer().token_bytes(id)
        return Alternative(id, logprob, token.decode(), token)

    return PromptLogprob(spelled(id, logprob), (spelled(other, -0.5),), rank)


def test_entries_are_read_like_a_tuple() -> None:
    prompt = np.array([70, 71, 72], np.int32)
    entries = PromptEntries(prompt, tokenizer())
    assert (len(entries), list(entries)) == (3, [None] * 3)
    scores = np.array([-1.0, -2.0], np.float32), np.array([1, 3], np.int32)
    others = np.array([[80], [81]], np.int32), np.full((2, 1), -0.5, np.float32)
    before = entries.copy()
    entries.add(PromptScores("a", 0, 1, *scores, *others))
    expected = (None, entry(71, -1.0, 1, 80), entry(72, -2.0, 3, 81))
    assert entries == expected
    assert entries[-1] == expected[-1]
    assert entries[1:] == expected[1:]
    assert pickle.loads(pickle.dumps(entries)) == expected
    assert repr(entries) == repr(expected)
    assert before == (None, None, None)
    assert entries != 5
