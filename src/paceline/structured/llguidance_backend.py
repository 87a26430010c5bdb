"""Grammars by llguidance."""

import json
import re
from collections.abc import Callable, Sequence
from ctypes import addressof, c_char
from functools import cache
from typing import Any, cast

import numpy as np
from llguidance import LLExecutor, LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
from llguidance.gbnf_to_lark import gbnf_to_lark

from paceline.core.arrays import I32
from paceline.core.constraint import Constraint, quoted
from paceline.core.errors import GrammarTooCostly, RequestError
from paceline.core.system.host import usable_cores
from paceline.structured.backend import GrammarBackend
from paceline.structured.json_schema import (
    Schema,
    TagRules,
    check_counts,
    closed,
    knows_format,
    whole,
)
from paceline.structured.token_table import TokenTable
from paceline.structured.tracked_matcher import TrackedMatcher, refusal

# Masks hold every token that the grammar allows, not only those of the one tokenization that the
# library would choose where it leaves one text.
OPTIONS = '%llguidance {"no_forcing": true}'
HEADER = re.compile(r"%llguidance\s*\{[^}]*\}")  # the same, of a client or of the library
SPECIAL = b"\xff"  # starts the spelling of a token that is not text
MOST_THREADS = 8
BYTES_PER_CHARACTER = 64  # of a grammar in memory; a guess, since the library does not say


class LLGuidanceMatcher(TrackedMatcher):
    def __init__(self, table: TokenTable, matcher: LLMatcher) -> None:
        super().__init__(table)
        self._matcher = matcher

    def _advance(self, token: int) -> bool:
        accepted = self._matcher.try_consume_tokens([token]) == 1
        self._check()
        return accepted

    def _retreat(self, tokens: int) -> None:
        self._matcher.rollback(tokens)

    def _fill_text(self, mask: I32, at: int) -> None:
        row = mask[at]
        if self._matcher.is_stopped():
            row[:] = 0
            return
        self._matcher.unsafe_compute_mask_ptr(address(row), row.nbytes)
        self._check()
        row &= self._table.text_row  # a grammar in Lark can name special tokens

    def _complete(self) -> bool:
        return self._matcher.is_accepting()

    def _copy(self) -> "LLGuidanceMatcher":
        return LLGuidanceMatcher(self._table, self._matcher.deep_copy())

    @classmethod
    def group(cls, matchers: Sequence["LLGuidanceMatcher"]) -> "LLGuidanceGroup":
        return LLGuidanceGroup([one._matcher for one in matchers], matchers[0]._table)

    def _check(self) -> None:
        if self._matcher.is_error():
            raise GrammarTooCostly(failure(self._matcher))


class LLGuidanceGroup:
    """See `backend.MatcherGroup`."""

    def __init__(self, matchers: Sequence[LLMatcher], table: TokenTable) -> None:
        self._matchers, self._table = matchers, table
        self._word, self._bit = divmod(table.eos[0], 32)
        self._mixed = np.flatnonzero(table.text_row != -1)  # words with ids that are no text

    def accept(self, tokens: Sequence[int]) -> dict[int, str]:
        found = executor().consume_token_par(list(zip(self._matchers, tokens, strict=True)))
        if all(found):
            return {}
        return {
            at: f"{refusal(tokens[at])}: {failure(self._matchers[at])}"
            for at, accepted in enumerate(found)
            if not accepted
        }

    def fill(self, mask: I32, at: Sequence[int]) -> dict[int, str]:
        pairs = list(zip(self._matchers, at, strict=True))
        executor().unsafe_compute_mask_ptr(pairs, address(mask), mask[0].nbytes, len(mask))
        # The end token is allowed where the text may end, and where a matcher has failed.
        ends = np.flatnonzero(mask[at, self._word] >> self._bit & 1).tolist()
        mask[np.array(at)[:, None], self._mixed] &= self._table.text_row[self._mixed]
        wrong: dict[int, str] = {}
        for index in ends:
            mask[at[index]] |= self._table.eos_row
            if self._matchers[index].is_error():
                wrong[index] = failure(self._matchers[index])
        return wrong


@cache
def executor() -> LLExecutor:
    """The threads that compute masks."""
    return LLExecutor(max(1, min(usable_cores() // 2, MOST_THREADS)))


class LLGuidanceGrammar:
    """See `backend.Grammar`. Matchers are copies of an initial one."""

    def __init__(self, table: TokenTable, matcher: LLMatcher, size_bytes: int) -> None:
        self._table, self._matcher, self.size_bytes = table, matcher, size_bytes

    def matcher(self) -> LLGuidanceMatcher:
        return LLGuidanceMatcher(self._table, self._matcher.deep_copy())


class SpelledTokens:
    """The tokens in llguidance's form."""

    def __init__(self, table: TokenTable) -> None:
        self.eos_token_id, self.bos_token_id = table.eos[0], None
        self.tokens = [text or SPECIAL + b"<%d>" % id for id, text in enumerate(table.spelled)]
        self.special_token_ids = [id for id, text in enumerate(table.spelled) if not text]

    def __call__(self, text: bytes) -> Sequence[int]:
        """Not needed, because of OPTIONS."""
        raise NotImplementedError


class LLGuidanceBackend(GrammarBackend):
    """The library itself limits its work per grammar and token."""

    def __init__(self, table: TokenTable) -> None:
        self._table = table
        self._tokens = LLTokenizer(
            TokenizerWrapper(SpelledTokens(table)), n_vocab=table.vocab_size, eos_token=table.eos[0]
        )
        self._limits = LLParserLimits(verbose_errors=False)

    def compile(self, constraint: Constraint) -> LLGuidanceGrammar:
        write: dict[str, Callable[[Constraint], str]] = {
            "json": json_grammar,
            "regex": regex_grammar,
            "choice": choice_grammar,
            "grammar": lark_grammar,
            "structural_tag": tag_grammar,
        }
        kind, text = constraint.kind, write[constraint.kind](constraint)
        text = f"{OPTIONS}\n{HEADER.sub('', text)}"
        matcher = LLMatcher(self._tokens, text, log_level=0, limits=self._limits)
        if matcher.is_error():
            raise RequestError(f"the {kind} does not compile: {first_line(matcher.get_error())}")
        return LLGuidanceGrammar(self._table, matcher, len(text) * BYTES_PER_CHARACTER)


def json_grammar(constraint: Constraint) -> str:
    options: dict[str, object] = {
        "whitespace_flexible": constraint.any_whitespace,
        "coerce_one_of": False,
        "lenient": False,
    }
    if not constraint.any_whitespace:
        options |= {"item_separator": ", ", "key_separator": ": "}
    schema = prepared(constraint.value)
    fields = cast(Schema, schema) if isinstance(schema, dict) else {}
    return f"start: %json {json.dumps({**fields, 'x-guidance': options})}"


def regex_grammar(constraint: Constraint) -> str:
    written = json.loads(LLMatcher.grammar_from_regex(constraint.text))
    return written["grammars"][0]["lark_grammar"]


def prepared(schema: object) -> object:
    """The schema with closed objects and without keywords that restrict nothing."""
    schema = closed(schema)
    check_counts(schema)
    for node in whole(schema):
        check_bounds(node)
        if not knows_format(node):
            node.pop("format", None)
        if node.get("uniqueItems") is False:
            del node["uniqueItems"]
    return schema


def check_bounds(node: Schema) -> None:
    """Refuse bounds that the library gets wrong: it allows a whole number that is excluded if the
    other bound is less than one away."""
    for name, others in (
        ("exclusiveMinimum", ("maximum", "exclusiveMaximum")),
        ("exclusiveMaximum", ("minimum", "exclusiveMinimum")),
    ):
        bound = node.get(name)
        if not isinstance(bound, int | float) or bound != int(bound):
            continue
        for other in others:
            if isinstance(value := node.get(other), int | float) and abs(value - bound) < 1:
                raise RequestError(f"llguidance does not support {name} {bound} so near {value}")


def choice_grammar(constraint: Constraint) -> str:
    return "start: " + " | ".join(map(quoted, constraint.value))


def lark_grammar(constraint: Constraint) -> str:
    if "::=" not in constraint.text:
        return constraint.text
    try:
        return gbnf_to_lark(constraint.text)
    except Exception as error:  # noqa: BLE001 (it raises a plain Exception for unknown rules)
        raise RequestError(f"the grammar does not compile: {error}") from None


def tag_grammar(constraint: Constraint) -> str:
    return TagRules(prepared).grammar(constraint.value["format"])


def address(array: I32) -> int:
    """`array.ctypes.data` returns the same but takes longer than many masks."""
    return addressof(c_char.from_buffer(cast(Any, array)))


def failure(matcher: LLMatcher) -> str:
    return f"the grammar failed: {first_line(matcher.get_error())}"


def first_line(message: str) -> str:
    return message.strip().splitlines()[0] if message.strip() else "unknown error"
