"""Grammars by xgrammar."""

import json
import re
from collections.abc import Callable, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import Any, cast

import tvm_ffi

from paceline.core.arrays import I32
from paceline.core.constraint import Constraint, quoted
from paceline.core.errors import RequestError
from paceline.core.system.host import usable_cores
from paceline.structured.backend import GrammarBackend
from paceline.structured.exact_schema import check_exact, exact_regex
from paceline.structured.json_schema import check_counts, closed, whole
from paceline.structured.token_table import TokenTable
from paceline.structured.tracked_matcher import TrackedMatcher, refusal

LIBRARY = "libxgrammar_bindings.so"


def library() -> Path:
    spec = find_spec("xgrammar")
    if spec is None or spec.origin is None:
        raise ImportError("no module named xgrammar", name="xgrammar")
    return Path(spec.origin).with_name(LIBRARY)


loaded: Any = tvm_ffi.load_module(str(library()))  # pyright: ignore[reportUnknownMemberType]


def bound(name: str) -> Any:
    declared = type(name, (tvm_ffi.Object,), {})
    return tvm_ffi.register_object(f"xgrammar.tvm_ffi_binding.{name}")(declared)


BatchGrammarMatcher = bound("BatchGrammarMatcher")
CompiledGrammar = bound("CompiledGrammar")
GrammarCompiler = bound("GrammarCompiler")
GrammarMatcher = bound("GrammarMatcher")
TokenizerInfo = bound("TokenizerInfo")


def shared_array(values: Sequence[Any]) -> Any:
    """Convert to the array type of the library once, not in each call."""
    return tvm_ffi.convert(values)


MOST_THREADS = 8
WORTH_S = 200e-6  # masks that one thread fills in less time are not worth waking others
EVERY = -1  # a word in which all bits stand for ids
AGAIN = 32  # calls after which one thread is timed again


class XGrammarGroup:
    """See `backend.MatcherGroup`. The library sets the bits of end tokens itself."""

    def __init__(self, handles: Sequence[Any], last_word: Any) -> None:
        self._handles, self._last_word = shared_array(handles), last_word
        self._all_accepted = shared_array([1] * len(handles))

    def accept(self, tokens: Sequence[int]) -> dict[int, str]:
        found = BatchGrammarMatcher.batch_accept_token(self._handles, tokens, False)
        if found == self._all_accepted:  # reading it takes longer than accepting
            return {}
        return {at: refusal(tokens[at]) for at, accepted in enumerate(found) if not accepted}

    def fill(self, mask: I32, at: Sequence[int]) -> dict[int, str]:
        filler().fill(self._handles, mask, at)
        if self._last_word != EVERY:
            mask[at, -1] &= self._last_word  # the bits after the last id are as they were
        return {}


class Filler:
    """Fills masks on the caller's thread, or on several if that has been taking long."""

    def __init__(self, threads: int) -> None:
        self._alone = BatchGrammarMatcher(1)
        self._together = BatchGrammarMatcher(threads) if threads > 1 else None
        self._mask_s = 0.0  # of one thread, by the latest timing
        self._calls = 0  # since then

    def fill(self, handles: Any, mask: I32, at: Sequence[int]) -> None:
        is_long = len(at) * self._mask_s > WORTH_S
        if self._together is not None and is_long and self._calls < AGAIN:
            self._calls += 1
            self._together.batch_fill_next_token_bitmask(handles, mask, at, False)
            return
        begin = perf_counter()
        self._alone.batch_fill_next_token_bitmask(handles, mask, at, False)
        self._mask_s, self._calls = (perf_counter() - begin) / len(at), 0


@cache
def filler() -> Filler:
    return Filler(min(usable_cores() // 2, MOST_THREADS))


RAW = 0  # the vocabulary is in bytes
SOURCE = re.compile(r"^\[[\d:]+\] \S+:\d+: ")  # before each message: a time and a line of C++


class XGrammarMatcher(TrackedMatcher):
    def __init__(self, table: TokenTable, handle: Any) -> None:
        super().__init__(table)
        self._handle = handle
        self._last_word = table.text_row[-1] | table.eos_row[-1]

    def _advance(self, token: int) -> bool:
        return bool(self._handle.accept_token(token, False))

    def _retreat(self, tokens: int) -> None:
        self._handle.rollback(tokens)

    def _fill_text(self, mask: I32, at: int) -> None:
        self._handle.fill_next_token_bitmask(mask, at, False)
        mask[at, -1] &= self._last_word  # the bits after the last id are as they were

    def _complete(self) -> bool:
        return bool(self._handle.is_completed())

    def _copy(self) -> "XGrammarMatcher":
        return XGrammarMatcher(self._table, self._handle.fork())

    @classmethod
    def group(cls, matchers: Sequence["XGrammarMatcher"]) -> XGrammarGroup:
        return XGrammarGroup([one._handle for one in matchers], matchers[0]._last_word)


class XGrammar:
    """See `backend.Grammar`."""

    def __init__(self, table: TokenTable, handle: Any) -> None:
        self._table, self._handle = table, handle
        self.size_bytes = int(handle.memory_size_bytes())

    def matcher(self) -> XGrammarMatcher:
        # No other stop tokens, an end by stop token, any number of tokens to roll back, and no
        # temperature.
        return XGrammarMatcher(self._table, GrammarMatcher(self._handle, None, False, -1, None))


class XGrammarBackend(GrammarBackend):
    def __init__(self, table: TokenTable) -> None:
        self._table = table
        tokens = TokenizerInfo(list(table.spelled), RAW, table.vocab_size, list(table.eos), False)
        # One thread, and no cache: the compiler of this package has one.
        self._compiler = GrammarCompiler(tokens, 1, False, -1)

    def compile(self, constraint: Constraint) -> XGrammar:
        build: dict[str, Callable[[Constraint], Any]] = {
            "json": self._json,
            "regex": lambda one: self._compiler.compile_regex(exact_regex(one.text)),
            "choice": self._choice,
            "grammar": self._grammar,
            "structural_tag": self._structural_tag,
        }
        try:
            return XGrammar(self._table, build[constraint.kind](constraint))
        except (RuntimeError, ValueError, TypeError) as error:
            if isinstance(error, RequestError):
                raise
            if "std::bad_alloc" in str(error):
                raise MemoryError from None
            raise RequestError(f"the {constraint.kind} does not compile: {reason(error)}") from None

    def _json(self, constraint: Constraint) -> Any:
        schema = exact(constraint.value)
        # Not strict: the schema says itself which objects are closed.
        return self._compiler.compile_json_schema(
            json.dumps(schema, ensure_ascii=False),
            constraint.any_whitespace,
            None,
            None,
            False,
            None,
            False,
        )

    def _choice(self, constraint: Constraint) -> Any:
        choices = " | ".join(map(quoted, constraint.value))
        return self._compiler.compile_grammar_from_strings(f"root ::= {choices}", "root")

    def _grammar(self, constraint: Constraint) -> Any:
        if "::=" in constraint.text:
            return self._compiler.compile_grammar_from_strings(constraint.text, "root")
        return self._compiler.compile_lark(constraint.text, [], [])

    def _structural_tag(self, constraint: Constraint) -> Any:
        tag = with_exact_schemas(constraint.value)
        return self._compiler.compile_structural_tag(json.dumps(tag, ensure_ascii=False))


def exact(schema: object) -> object:
    schema = closed(schema)
    check_counts(schema)
    check_exact(schema)
    for node in whole(schema):
        if "oneOf" in node:  # its branches are disjoint, or no reference leads to it
            node["anyOf"] = node.pop("oneOf")
    return schema


def with_exact_schemas(value: Any) -> Any:
    """A structural tag whose schemas are closed and checked."""
    if isinstance(value, list):
        return [with_exact_schemas(one) for one in cast(list[Any], value)]
    if not isinstance(value, dict):
        return value
    fields = cast(dict[str, Any], value)
    return {
        name: exact(one) if name == "json_schema" else with_exact_schemas(one)
        for name, one in fields.items()
    }


def reason(error: Exception) -> str:
    """The message of a library error, without its line in the library's source."""
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    return SOURCE.sub("", lines[-1]).strip() if lines else type(error).__name__
