"""Constraints and a vocabulary for benchmarks of structured output, without a model."""

from concurrent.futures import Future
from itertools import islice, product
from typing import Any

from paceline.core.constraint import Constraint
from paceline.structured.backend import Grammar, backend_class
from paceline.structured.compile_queue import GrammarCounts
from paceline.structured.token_table import TokenTable

END = 256  # behind the bytes
LETTERS = b"etaoinshrdlucmfwypvbgkqjxz"


def documents(
    properties: dict[str, Any], optional: tuple[str, ...] = (), any_whitespace: bool = True
) -> Constraint:
    """A list of so many objects that no output ends."""
    required = [name for name in properties if name not in optional]
    item = {"type": "object", "properties": properties, "required": required}
    schema = {"type": "array", "items": item, "minItems": 99}
    return Constraint.json(schema, any_whitespace=any_whitespace)


# Most masks of the first one are ready when the grammar is compiled. A string whose length is
# bounded has masks that depend on how long it is.
CASES = {
    "schema": documents(
        {
            "name": {"type": "string"},
            "code": {"type": "string", "pattern": "^[0-9]{5}$"},
            "age": {"type": "integer", "minimum": 0, "maximum": 120},
            "kind": {"enum": ["reader", "writer", "editor"]},
            "tags": {"type": "array", "items": {"type": "boolean"}},
        },
        optional=("name",),
    ),
    "pattern": documents({"name": {"type": "string", "pattern": "^[a-z]{3,9}$"}}),
}

# Where tokens are bytes, most of them are the only ones that are allowed.
LONG_KEYS = documents(
    {
        "is_the_first_of_several": {"type": "boolean"},
        "number_of_seconds_in_all": {"type": "integer", "minimum": 0, "maximum": 999},
    },
    any_whitespace=False,
)


def vocabulary(size: int) -> TokenTable:
    """All bytes, an end token, and words of letters, short ones first, with a space or without."""
    spelled = [bytes([byte]) for byte in range(256)] + [b""]
    words = (bytes(word) for length in range(2, 9) for word in product(LETTERS, repeat=length))
    pairs = (one for word in words for one in (word, b" " + word))
    spelled += islice(pairs, size - len(spelled))
    return TokenTable(tuple(spelled), (END,))


class CompilesAtOnce:
    """Compiles each constraint once, on the caller's thread."""

    counts = GrammarCounts()

    def __init__(self, table: TokenTable, backend: str = "xgrammar") -> None:
        self._backend = backend_class(backend)(table)
        self._known: dict[Constraint, Future[Grammar]] = {}

    def submit(self, constraint: Constraint, client: str = "") -> Future[Grammar]:
        if constraint not in self._known:
            self._known[constraint] = Future()
            self._known[constraint].set_result(self._backend.compile(constraint))
        return self._known[constraint]

    def close(self) -> None:
        """There is no other thread."""
