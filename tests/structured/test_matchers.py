"""Matchers of all backends behave alike: states, masks and drafts."""

from random import Random
from typing import Any

import numpy as np
import pytest

from paceline.core.constraint import Constraint
from paceline.core.errors import RequestError
from paceline.structured.backend import Matcher
from tests.structured.support import allowed, backend, every_backend, ids, made_schema, table, walk

PERSON = Constraint.json(
    {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
        "required": ["name", "age"],
    }
)
CONSTRAINTS = [
    PERSON,
    Constraint.json(made_schema(36)),
    Constraint.json({"type": "array", "items": {"anyOf": [{"type": "null"}, {"const": "the"}]}}),
    Constraint.regex("(ab|cd)*e?"),
    Constraint.choice(["hello", "hello world", "the"]),
    Constraint.grammar('root ::= "(" root ")" | "hello "*'),
]
END = table().eos[0]


def matcher_of(name: str, constraint: Constraint, text: str = "") -> Matcher:
    found = backend(name).compile(constraint).matcher()
    assert all(found.accept(token) for token in ids(text))
    return found


def state(matcher: Matcher) -> tuple[list[int], bool, bool]:
    return allowed(matcher), matcher.finished, matcher.terminated


@every_backend
@pytest.mark.parametrize("constraint", CONSTRAINTS)
def test_a_random_history_is_the_same_as_a_fresh_matcher(name: str, constraint: Constraint) -> None:
    grammar = backend(name).compile(constraint)
    for seed in range(4):
        random, matcher, tokens = Random(seed), grammar.matcher(), list[int]()
        for _ in range(25):
            fresh = grammar.matcher()
            assert all(map(fresh.accept, tokens))
            assert state(fresh) == state(matcher)
            possible = allowed(matcher)
            match random.randrange(4):
                case 0:
                    back = random.randint(0, len(tokens))
                    matcher.rollback(back)
                    tokens = tokens[: len(tokens) - back]
                case 1:
                    wrong = next(id for id in range(table().vocab_size) if id not in possible)
                    token = random.choice(possible)
                    assert not matcher.accept(wrong)
                    accepted = int(not matcher.terminated)
                    assert matcher.try_tokens([token, wrong, token]) in (accepted, accepted * 3)
                case 2:
                    fork = matcher.fork()
                    fork.accept(random.choice(possible))
                case _:
                    token = random.choice(possible)
                    if matcher.accept(token):
                        tokens.append(token)
                    else:
                        assert matcher.terminated


@every_backend
@pytest.mark.parametrize("constraint", CONSTRAINTS)
def test_a_mask_allows_what_is_accepted(name: str, constraint: Constraint) -> None:
    matcher = backend(name).compile(constraint).matcher()
    random = Random(1)
    for _ in range(6):
        possible = allowed(matcher)
        accepted = [id for id in range(table().vocab_size) if matcher.try_tokens([id])]
        assert accepted == possible
        text = [id for id in possible if id not in table().eos]
        if not text:
            break
        matcher.accept(random.choice(text))


@every_backend
def test_the_end(name: str) -> None:
    matcher = matcher_of(name, Constraint.choice(["hello", "hello world"]))
    assert not matcher.finished
    assert not matcher.accept(END)
    for token in ids("hello"):
        assert matcher.accept(token)
    assert matcher.finished
    assert not matcher.terminated
    assert set(table().eos) < set(allowed(matcher))
    assert matcher.accept(table().eos[1])
    assert matcher.finished
    assert matcher.terminated
    assert allowed(matcher) == list(table().eos)
    assert not matcher.accept(END)
    matcher.rollback(1)
    assert not matcher.terminated
    assert matcher.try_tokens([*ids(" world"), END, END]) == len(ids(" world")) + 1
    assert allowed(matcher_of(name, Constraint.choice(["the"]), "the")) == list(table().eos)


@every_backend
def test_ids_that_are_no_text_are_refused(name: str) -> None:
    matcher = matcher_of(name, Constraint.regex(".*"))
    for id in (-1, 0, table().vocab_size - 1, table().vocab_size, 1 << 40):
        assert not matcher.accept(id)
    assert max(allowed(matcher)) < table().vocab_size - 7


@every_backend
def test_a_row_for_each_draft(name: str) -> None:
    matcher = matcher_of(name, PERSON, '{"na')
    drafts = [*ids('me": "x'), *ids("{")]
    wrong = [*ids("me"), *ids("!"), *ids("x")]
    for one, valid in ((drafts, len(drafts)), (wrong, len(ids("me"))), ([], 0), ([END], 0)):
        mask = np.zeros((len(one) + 1, table().words), np.int32)
        before = state(matcher)
        assert matcher.fill_rows(mask, one) == valid == matcher.try_tokens(one)
        assert state(matcher) == before
        expected = matcher.fork()
        for at in range(valid + 1):
            row = np.zeros(table().words, np.int32)
            expected.fill(row)
            assert (mask[at] == row).all()
            if at < valid:
                expected.accept(one[at])
        assert (mask[valid + 1 :] == -1).all()


@every_backend
def test_drafts_may_end_the_output(name: str) -> None:
    matcher = matcher_of(name, Constraint.choice(["the"]))
    drafts: Any = np.array([*ids("the"), END, END], np.int32)  # as columns hold them
    mask = np.zeros((len(drafts) + 1, table().words), np.int32)
    assert matcher.fill_rows(mask, drafts) == len(drafts) - 1
    assert not matcher.terminated
    assert (mask[len(drafts) - 1] == table().eos_row).all()


@every_backend
def test_forks_are_independent(name: str) -> None:
    matcher = matcher_of(name, PERSON)
    fork = matcher.fork()
    tokens = walk(fork, Random(3))
    assert tokens is not None
    assert matcher.try_tokens([*tokens, END]) == len(tokens) + 1
    assert fork.terminated
    assert not matcher.finished


@every_backend
def test_a_grammar_without_a_way_out_says_so(name: str) -> None:
    try:
        matcher = matcher_of(name, Constraint.grammar('root ::= "a" root'), "a")
    except RequestError:
        return  # it is refused at once
    assert not matcher.finished
