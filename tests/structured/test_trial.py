"""Grammars are tried out before they are used."""

import pytest

from paceline.core.constraint import Constraint
from paceline.core.errors import GrammarTooCostly, RequestError
from paceline.structured.worker_process import mean_fill_s, try_out
from tests.structured.support import backend, every_backend, table


@every_backend
def test_the_time_of_masks_is_measured(name: str) -> None:
    for constraint in (Constraint.json_object(), Constraint.choice(["the", "one"])):
        matcher = backend(name).compile(constraint).matcher()
        assert 0 < mean_fill_s(matcher, table()) < 1


@every_backend
def test_a_limit_on_masks(name: str) -> None:
    try_out(backend(name), table(), Constraint.json_object(), fill_s=1.0)
    with pytest.raises(GrammarTooCostly, match=r"json takes .* ms for each token, more than 0 ms"):
        try_out(backend(name), table(), Constraint.json_object(), fill_s=0.0)
    with pytest.raises(RequestError, match="does not compile"):
        try_out(backend(name), table(), Constraint.regex("a(b"), fill_s=1.0)


def test_work_per_token_is_limited_by_llguidance_itself() -> None:
    endless = Constraint.regex("((a{0,99}){0,99}){0,99}")
    with pytest.raises(GrammarTooCostly, match="the grammar failed: lexer error"):
        try_out(backend("llguidance"), table(), endless, fill_s=60.0)
