"""A small vocabulary, random schemas, and outputs that follow a grammar at random."""

import json
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from functools import cache
from random import Random
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pytest

from paceline.structured.backend import BACKENDS, Grammar, GrammarBackend, Matcher, backend_class
from paceline.structured.token_table import TokenTable
from tests.text.support import byte_level, ours

PADDING = 7  # ids that the model has and the tokenizer has not

every_backend = pytest.mark.parametrize("name", BACKENDS)


@cache
def table() -> TokenTable:
    tokenizer = ours(byte_level(), eos=(1, 2))
    return TokenTable.of(tokenizer, tokenizer.vocab_size + PADDING)


@cache
def backend(name: str) -> GrammarBackend:
    with torch_hidden():
        return backend_class(name)(table())


@contextmanager
def torch_hidden() -> Iterator[None]:
    """A library imports torch if it can, in vain and for seconds."""
    if "torch" in sys.modules:
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "torch", None)
        yield


def ids(text: str) -> list[int]:
    encode = table().encode
    assert encode is not None
    return encode(text)


def text_of(tokens: list[int]) -> str:
    return b"".join(table().spelled[id] for id in tokens).decode(errors="replace")


def allowed(matcher: Matcher) -> list[int]:
    return np.flatnonzero(allowed_bits(matcher)).tolist()


def allowed_bits(matcher: Matcher) -> npt.NDArray[np.bool_]:
    row = np.full(table().words, -1, np.int32)
    matcher.fill(row)
    return np.unpackbits(row.view(np.uint8), bitorder="little").view(np.bool_)


def accepts(grammar: Grammar, text: str) -> bool:
    tokens = [*ids(text), table().eos[0]]
    return grammar.matcher().try_tokens(tokens) == len(tokens)


def marked(tokens: Iterable[int]) -> npt.NDArray[np.bool_]:
    bits = np.zeros(table().words * 32, np.bool_)
    bits[list(tokens)] = True
    return bits


VISIBLE = marked(id for id, text in enumerate(table().spelled) if text.strip())
PLAIN = marked(id for id, text in enumerate(table().spelled) if re.fullmatch(rb"[!-\[\]-~]+", text))
QUOTE, BRACE, BRACKET, TILDE = (table().spelled.index(mark) for mark in (b'"', b"}", b"]", b"~"))


def walk(
    matcher: Matcher,
    random: Random,
    free: int = 40,
    limit: int = 120,
    among: npt.NDArray[np.bool_] = VISIBLE,
) -> list[int] | None:
    """Tokens of an output: `free` random ones, then what closes quotes and brackets soonest.

    None if it has not ended within the limit.
    """
    tokens: list[int] = []
    end = table().eos[0]
    while len(tokens) < limit:
        bits = allowed_bits(matcher)
        others = np.flatnonzero(bits & among)
        if bits[end] and (len(tokens) >= free or not len(others) or random.random() < 0.1):
            assert matcher.finished
            assert matcher.accept(end)
            assert matcher.terminated
            return tokens
        in_text = bits[TILDE]  # which a document has in strings only
        closing = [id for id in ((QUOTE,) if in_text else (BRACE, BRACKET, QUOTE)) if bits[id]]
        if closing and len(tokens) >= free:
            token = closing[0]
        else:
            others = others if len(others) else np.flatnonzero(bits)
            token = int(others[random.randrange(len(others))])
        assert matcher.accept(token), (token, text_of(tokens))
        tokens.append(token)
    return None


def parsed(text: str) -> Any:
    """The document, with exact numbers, as far as they are not astronomical."""
    return json.loads(text, parse_float=exact_number)


def exact_number(text: str) -> Decimal | float:
    return float(text) if "e" in text.lower() or len(text) > 24 else Decimal(text)


PATTERNS = ["^[a-c]+x?$", "^(ab|cd){2}$", "[0-9]", "^[ -~]{2,4}$", "^[^a]$", "^a.c|\\d+$", "\\n"]


class SchemaMaker:
    """Random schemas of a bounded depth."""

    names: ClassVar = ["a", "name", "the thing", 'q"uote', "naïve", "b"]

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)

    def schema(self, depth: int = 3) -> dict[str, Any]:
        root = self.any(depth)
        if "$ref" in json.dumps(root):
            root["$defs"] = {
                "leaf": self.leaf(),
                "node": {
                    "type": "object",
                    "properties": {
                        "value": self.leaf(),
                        "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]},
                    },
                    "required": ["next"],
                },
            }
        return root

    def any(self, depth: int) -> dict[str, Any]:
        kinds = [self.object, self.object, self.array, self.union, self.tagged]
        if depth == 0 or self.random.random() < 0.25:
            return self.leaf()
        return self.random.choice(kinds)(depth - 1)

    def object(self, depth: int) -> dict[str, Any]:
        names = self.random.sample(self.names, 3)
        names = names[: self.random.randint(0, 3)]
        made: dict[str, Any] = {
            "type": "object",
            "properties": {name: self.any(depth) for name in names},
            "required": [name for name in names if self.random.random() < 0.6],
        }
        if not names:
            del made["properties"]
        if (further := self.random.random()) < 0.2:
            made["additionalProperties"] = self.leaf()
        elif further < 0.4:
            made["additionalProperties"] = self.random.choice([False, True])
        return made

    def array(self, depth: int) -> dict[str, Any]:
        made: dict[str, Any] = {"type": "array", "items": self.any(depth)}
        if self.random.random() < 0.3:
            made["prefixItems"] = [self.leaf() for _ in range(self.random.randint(1, 2))]
            if self.random.random() < 0.5:
                made["items"] = False
                return made
        least = self.random.randint(0, 2)
        if self.random.random() < 0.5:
            made |= {"minItems": least, "maxItems": least + self.random.randint(1, 2)}
        return made

    def union(self, depth: int) -> dict[str, Any]:
        return {"anyOf": [self.any(depth) for _ in range(self.random.randint(1, 3))]}

    def tagged(self, depth: int) -> dict[str, Any]:
        """A union of objects that differ in one property."""
        return {
            "oneOf": [
                {
                    "type": "object",
                    "properties": {"kind": {"const": kind}, "value": self.any(depth)},
                    "required": ["kind", "value"],
                }
                for kind in ("one", "two")
            ]
        }

    def leaf(self) -> dict[str, Any]:
        random = self.random
        low = random.randint(-30, 30)
        high = low + random.randint(0, 300)
        return random.choice(
            [
                {"type": "string"},
                {"type": "string", "minLength": 1, "maxLength": random.randint(1, 5)},
                {
                    "type": "string",
                    "pattern": random.choice(PATTERNS),
                },
                {"type": "string", "enum": ["a", "è\n", 'q"']},
                {"type": "string", "format": random.choice(["date", "uuid", "int32"])},
                {"type": "integer"},
                {"type": "integer", "minimum": low, "maximum": high},
                {"type": "integer", "exclusiveMinimum": low},
                {"type": "integer", "multipleOf": random.randint(2, 7)},
                {"type": "number"},
                {"type": "number", "minimum": low + 0.5, "exclusiveMaximum": high + 1},
                {"type": "boolean"},
                {"type": "null"},
                {"type": ["string", "null"], "title": "A name"},
                {"type": ["integer", "boolean"], "minimum": low},
                {"const": random.choice([1, "x", None, [1, {"a": 2}], 1.5])},
                {"enum": [1, "two", [3], None]},
                {"$ref": "#/$defs/leaf"} if random.random() < 0.5 else {"$ref": "#/$defs/node"},
                {},
            ]
        )


def made_schema(seed: int) -> dict[str, Any]:
    made = SchemaMaker(seed).schema()
    leaf = made.get("$defs", {}).get("leaf")
    if leaf is not None and "$ref" in leaf:
        made["$defs"]["leaf"] = {"type": "integer"}
    return made
