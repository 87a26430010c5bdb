"""Which alternatives are reported with a token."""

import numpy as np
import pytest

from paceline.core.plan import Candidates
from paceline.core.sampling import Sampling
from paceline.engine.frontend.entries import token_entries
from paceline.engine.loop.messages import Delivery
from tests.engine.support import tokenizer

FOUND = Candidates(np.array([[9, 7, 8, -1]]), np.array([[-1.0, -2.0, -3.0, 0.0]], np.float32))


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (Sampling(), None),
        (Sampling(logprobs=0), []),
        (Sampling(logprobs=2), [9, 7]),
        (Sampling(logprobs=20), [9, 7, 8]),
        (Sampling(logprob_token_ids=[8, 9]), [7, 9, 8]),
        (Sampling(logprob_token_ids=[7]), [7]),
        (Sampling(logprob_token_ids=[5]), [7]),  # a mask does not allow it
    ],
)
def test_alternatives_are_the_likeliest_or_the_named(
    sampling: Sampling, expected: list[int] | None
) -> None:
    one = np.array([1], np.int32)
    delivery = Delivery(
        0.0, np.array([0]), np.array([[7]], np.int32), one, np.array([[-2.0]], np.float32), FOUND
    )
    entries = token_entries(delivery, 0, sampling, tokenizer())
    if expected is None:
        assert entries == []
    else:
        (entry,) = entries
        assert (entry.chosen.token_id, entry.chosen.logprob) == (7, -2.0)
        assert [top.token_id for top in entry.top] == expected
