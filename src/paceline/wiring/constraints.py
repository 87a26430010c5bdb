"""Structured output for a model."""

from paceline.core.config import LoadConfig
from paceline.engine.core.constrained_requests import ConstrainedRequests
from paceline.structured.compiler import CompilerLimits, GrammarCompiler
from paceline.structured.lazy_compiler import LazyCompiler
from paceline.structured.token_table import TokenTable
from paceline.text.tokenizer import Tokenizer


def constrained_requests(
    tokenizer: Tokenizer, vocab: int, settings: LoadConfig
) -> ConstrainedRequests | None:
    """For a model with `vocab` logits. None without an end token: no grammar could end."""
    eos = tuple(token for token in tokenizer.eos if token < vocab)
    if not eos:
        return None
    limits = CompilerLimits(limit_s=settings.grammar_compile_limit_s)

    def build() -> GrammarCompiler:
        table = TokenTable.of(tokenizer, vocab)
        return GrammarCompiler(table, settings.structured_outputs_backend, limits)

    return ConstrainedRequests(LazyCompiler(build), -(-vocab // 32), eos)
