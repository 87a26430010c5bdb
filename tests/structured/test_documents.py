"""Every document that follows a grammar at random is valid against its schema."""

import re
from functools import cache
from random import Random

from jsonschema import Draft202012Validator

from paceline.core.constraint import Constraint
from paceline.core.errors import RequestError
from paceline.structured.backend import BACKENDS, Grammar
from tests.structured.support import (
    PLAIN,
    backend,
    every_backend,
    made_schema,
    parsed,
    text_of,
    walk,
)

SCHEMAS = 200
WALKS = 2


@cache
def compiled(name: str, seed: int) -> Grammar | None:
    """None if the backend refuses the schema."""
    try:
        return backend(name).compile(Constraint.json(made_schema(seed)))
    except RequestError:
        return None


@every_backend
def test_documents_of_random_schemas_are_valid(name: str) -> None:
    ended = refused = 0
    for seed in range(SCHEMAS):
        schema, grammar = made_schema(seed), compiled(name, seed)
        if grammar is None:
            refused += 1
            continue
        check = Draft202012Validator(schema)
        for turn in range(WALKS):
            tokens = walk(grammar.matcher(), Random(seed * WALKS + turn), free=20 * turn)
            if tokens is not None:
                ended += 1
                document = text_of(tokens)
                assert check.is_valid(parsed(document)), (seed, schema, document)
    assert refused < SCHEMAS / 3
    assert ended > (SCHEMAS - refused) * WALKS * 0.9


# What one backend allows and the other does not, beside characters that are not plain: negative
# zero, and many digits after the point of a bounded number.
DIFFERENT = re.compile(r"-0|\.\d{6}")


def test_each_backend_accepts_the_documents_of_the_other() -> None:
    compared = 0
    for seed in range(SCHEMAS):
        one, other = (compiled(name, seed) for name in BACKENDS)
        if one is None or other is None:
            continue
        for writer, reader in ((one, other), (other, one)):
            tokens = walk(writer.matcher(), Random(seed), free=15, among=PLAIN)
            if tokens is not None and not DIFFERENT.search(text_of(tokens)):
                assert reader.matcher().try_tokens(tokens) == len(tokens), (seed, text_of(tokens))
                compared += 1
    assert compared > SCHEMAS
