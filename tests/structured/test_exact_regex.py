"""Regular expressions and choices hold what `re` says."""

import re
from random import Random

import pytest

from paceline.core.constraint import Constraint
from paceline.core.errors import RequestError
from paceline.structured.exact_schema import exact_regex
from tests.structured.support import accepts, backend, every_backend, text_of, walk

PATTERNS = [
    "a|b|c",
    "(ab?|cd)*e",
    r"\d{3}-\d{4}",
    r"[A-Z][a-z]{0,5}( [A-Z][a-z]{0,5})?",
    r"[^\n]*",
    "h.llo",
    r"^\s*x\.y$",
    "^a$|^b+$",
    r"[\w-]+@[\w-]+\.(com|org)",
    "é+[à-ü]?",
    r"\(\[\{\}\]\)\\/\"'",
    "(a|a|aa)*b",
    "(?:x|yz){2,3}",
    "a*?b+?",
    r"\u00e9|\x41",
]
PROBES = [
    "",
    "a",
    "b",
    "bb",
    "abe",
    "e",
    "hello",
    "h\nllo",
    "555-1234",
    "x.y",
    " \tx.y",
    "xy",
    "é",
    "éü",
    "A",
]


@every_backend
@pytest.mark.parametrize("pattern", PATTERNS)
def test_random_texts_match(name: str, pattern: str) -> None:
    grammar = backend(name).compile(Constraint.regex(pattern))
    for seed in range(3):
        tokens = walk(grammar.matcher(), Random(seed), free=8 * seed, limit=60)
        if tokens is not None:
            assert re.fullmatch(pattern, text_of(tokens)), text_of(tokens)
    for text in PROBES:
        assert accepts(grammar, text) == bool(re.fullmatch(pattern, text)), text


@every_backend
def test_choices(name: str) -> None:
    choices = ["yes", "no", "no, thanks", 'a "quoted"\n\\ text', "naïve 你好 😀", "\x01\x7f"]
    grammar = backend(name).compile(Constraint.choice(choices))
    found = {text_of(walk(grammar.matcher(), Random(seed)) or []) for seed in range(40)}
    assert found == set(choices)
    for text in ["", "ye", "yes ", "no,", "NO"]:
        assert not accepts(grammar, text)


@pytest.mark.parametrize(
    ("pattern", "position"),
    [("a^", 1), ("a$b", 1), ("(a$)b", 2), ("(^a)", 1), (r"\Aa", 0), (r"a\b", 1), (r"x\1", 1)],
)
def test_what_xgrammar_reads_differently_is_refused_with_its_place(
    pattern: str, position: int
) -> None:
    with pytest.raises(RequestError, match=f"at position {position} of the regex"):
        exact_regex(pattern)


def test_a_dot_is_no_line_break() -> None:
    assert exact_regex(r"a.[.]\.") == r"a[^\n][.]\."


@every_backend
@pytest.mark.parametrize("pattern", ["a(b", "[z-a]", "(?=x)a", r"(a)\1"])
def test_a_regex_that_does_not_compile_says_where(name: str, pattern: str) -> None:
    with pytest.raises(RequestError, match=r"position|column|\d\(\d+\)"):
        backend(name).compile(Constraint.regex(pattern))
