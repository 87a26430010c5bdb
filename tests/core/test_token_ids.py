"""Token ids in any form become one array."""

import numpy as np
import pytest

from paceline.core.arrays import token_array
from paceline.core.errors import RequestError


def test_token_arrays_may_be_empty() -> None:
    assert token_array([], "nothing").tolist() == []


def test_an_array_that_was_made_here_is_not_copied() -> None:
    made = token_array([5, 6], "a prompt")
    assert token_array(made, "a prompt") is made
    assert made.dtype == np.int32
    assert not made.flags.writeable


def test_an_error_says_what_the_ids_belong_to() -> None:
    with pytest.raises(RequestError, match=r"^a prompt has a negative token id: -3$"):
        token_array([1, -3], "a prompt")
    with pytest.raises(RequestError, match=r"^a prompt must be a list of token ids: "):
        token_array(["a"], "a prompt")
