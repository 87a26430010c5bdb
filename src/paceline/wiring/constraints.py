"""Structured output for a model."""

from paceline.engine.core.constrained_requests import ConstrainedRequests
from paceline.structured.compiler import GrammarCompiler
from paceline.structured.lazy_compiler import LazyCompiler
from paceline.structured.token_table import TokenTable
from paceline.text.tokenizer import Tokenizer


def constrained_requests(
    tokenizer: Tokenizer, vocab: int, backend: str = "auto"
) -> ConstrainedRequests | None:
    """For a model with `vocab` logits. None without an end token: no grammar could end.

    `backend` is the setting `structured_outputs_backend`.
    """
    eos = tuple(token for token in tokenizer.eos if token < vocab)
    if not eos:
        return None

    def build() -> GrammarCompiler:
        return GrammarCompiler(TokenTable.of(tokenizer, vocab), backend)

    return ConstrainedRequests(LazyCompiler(build), -(-vocab // 32), eos)
