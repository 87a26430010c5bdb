"""The interface of grammar libraries, and how a backend is found."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, Protocol

from paceline.core import plugins
from paceline.core.arrays import I32
from paceline.core.constraint import Constraint
from paceline.structured.token_table import TokenTable


class Matcher(Protocol):
    """The state of one sequence in its grammar. One thread at a time may use it.

    A method that computes masks or accepts tokens raises a RequestError if the grammar takes too
    much work; the sequence cannot continue then.
    """

    def accept(self, token: int) -> bool:
        """Advance by a token. False, and nothing changes, if the grammar does not allow it."""
        ...

    def try_tokens(self, tokens: Sequence[int]) -> int:
        """The number of tokens from the start that the grammar allows; nothing changes."""
        ...

    def rollback(self, tokens: int) -> None:
        """Take back the last tokens."""
        ...

    def fill(self, row: I32) -> None:
        """Write the mask of the next token. A set bit is an allowed id."""  # [words]
        ...

    def fill_rows(self, mask: I32, drafts: Sequence[int]) -> int:
        """Write one row for the next token and one after each draft; nothing else changes.

        Returns how many drafts are allowed. Rows after the first refused draft allow every id.
        """  # mask: [1 + drafts, words]
        ...

    def fork(self) -> "Matcher":
        """A copy of the matcher in the same state."""
        ...

    @property
    def finished(self) -> bool:
        """Whether the output may end here; also true after the end token."""
        ...

    @property
    def terminated(self) -> bool:
        """Whether an end token was accepted. No other token is allowed then, but masks keep the end
        tokens, so that every row allows a token."""
        ...

    @classmethod
    def group(cls, matchers: Sequence[Any]) -> "MatcherGroup":
        """Matchers of this class that advance together."""
        ...


class MatcherGroup(Protocol):
    """Several matchers of one class, with one call of the library for all of them. None of them is
    terminated. Both methods return errors of those that cannot continue, by index."""

    def accept(self, tokens: Sequence[int]) -> dict[int, str]:
        """Advance each matcher by its token, which is no end token."""
        ...

    def fill(self, mask: I32, at: Sequence[int]) -> dict[int, str]:
        """Write the mask of the next token of matcher i to row `at[i]`."""  # mask: [rows, words]
        ...


class Grammar(Protocol):
    """A compiled constraint. Threads may share it."""

    @property
    def size_bytes(self) -> int:
        """Approximate size."""
        ...

    def matcher(self) -> Matcher: ...


class GrammarBackend(ABC):
    """Compiles constraints for the tokens of one model. Threads may share it."""

    @abstractmethod
    def __init__(self, table: TokenTable) -> None: ...

    @abstractmethod
    def compile(self, constraint: Constraint) -> Grammar:
        """Compile a constraint. A RequestError says where it is malformed or not supported."""


# xgrammar computes masks faster; llguidance supports more keywords of schemas and needs no other
# package, so `paceline[serve]` installs llguidance alone.
BACKENDS = {
    "xgrammar": "paceline.structured.xgrammar_backend.XGrammarBackend",
    "llguidance": "paceline.structured.llguidance_backend.LLGuidanceBackend",
}
AUTO = "auto"  # all backends, in this order
ALIASES = {"guidance": "llguidance"}  # vLLM's names


def backend_names(choice: str) -> tuple[str, ...]:
    """The backends that a setting stands for, in the order in which they are tried.

    `auto` leaves out libraries that are not installed, if one is. ConfigError if a dotted path
    leads to no backend.
    """
    if choice == AUTO:
        return tuple(name for name in BACKENDS if find_spec(name) is not None) or tuple(BACKENDS)
    name = ALIASES.get(choice, choice)
    if name not in BACKENDS:
        backend_class(name)
    return (name,)


def backend_class(name: str) -> type[GrammarBackend]:
    """Import a backend by name or by the dotted path of a class. For a known name this imports its
    library, which takes time and is not needed before the first constraint."""
    also = (*ALIASES, AUTO)
    return plugins.load("grammar backend", name, BACKENDS, GrammarBackend, also=also)
