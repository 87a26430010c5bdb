"""What a compiler of grammars has done, for metrics."""

from dataclasses import dataclass


@dataclass(slots=True)
class GrammarCounts:
    """What a compiler has done since its start."""

    grammars_compiled: int = 0
    grammars_refused: int = 0  # malformed, not supported, or too costly
    grammar_cache_hits: int = 0  # constraints whose grammar or refusal was kept
    grammar_compile_s: float = 0.0  # seconds, of refused ones too
