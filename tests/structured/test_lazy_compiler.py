"""The compiler is built for the first constraint, off the calling thread."""

from threading import Event

import pytest

from paceline.core.constraint import Constraint
from paceline.core.errors import ConfigError
from paceline.structured.backend import backend_names
from paceline.structured.compiler import GrammarCompiler, LazyCompiler
from tests.structured.support import accepts, table

WAIT_S = 60.0
WORD = Constraint.regex("[a-z]+")


def test_it_is_built_once_and_only_if_needed() -> None:
    built: list[GrammarCompiler] = []
    may_build = Event()

    def build() -> GrammarCompiler:
        assert may_build.wait(WAIT_S)
        built.append(GrammarCompiler(table(), backend_names("auto")))
        return built[-1]

    lazy = LazyCompiler(build)
    first, dropped = lazy.submit(WORD), lazy.submit(Constraint.regex("a"))
    assert dropped.cancel()
    assert not built
    may_build.set()
    assert accepts(first.result(WAIT_S), "word")
    assert lazy.submit(WORD).result(0) is first.result()
    assert len(built) == 1
    lazy.close()


def test_what_is_wrong_with_building_it_is_the_answer() -> None:
    def build() -> GrammarCompiler:
        raise ConfigError("no end token")

    lazy = LazyCompiler(build)
    for _ in range(2):
        with pytest.raises(ConfigError, match="no end token"):
            lazy.submit(WORD).result(WAIT_S)
    lazy.close()


def test_one_that_was_never_used_has_nothing_to_close() -> None:
    LazyCompiler(lambda: GrammarCompiler(table(), backend_names("auto"))).close()
