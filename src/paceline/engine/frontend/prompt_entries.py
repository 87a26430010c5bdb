"""The log-probabilities of a prompt, spelled out when they are read."""

from collections.abc import Sequence
from typing import Any, cast, overload

from paceline.core.arrays import I32
from paceline.core.plan import PromptScores
from paceline.engine.api import Alternative, PromptLogprob
from paceline.text.tokenizer import Tokenizer

Entry = PromptLogprob | None


class PromptEntries(Sequence[Entry]):
    """One entry per token; None: not known, as for the first token.

    A prompt may have thousands of tokens with many alternatives each. So the arrays are kept as
    they arrive, and an entry is built when it is read, which may be on another thread.
    """

    def __init__(self, prompt: I32, tokenizer: Tokenizer) -> None:
        self._prompt, self._tokenizer = prompt, tokenizer
        self._found: list[tuple[PromptScores, int] | None] = [None] * len(prompt)

    def add(self, scores: PromptScores) -> None:
        """Record scores; those that are known are kept."""
        for row, place in enumerate(range(scores.first, scores.first + len(scores.rank))):
            self._found[place] = self._found[place] or (scores, row)

    def copy(self) -> "PromptEntries":
        same = PromptEntries(self._prompt, self._tokenizer)
        same._found = list(self._found)
        return same

    def __len__(self) -> int:
        return len(self._found)

    @overload
    def __getitem__(self, index: int) -> Entry: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Entry, ...]: ...

    def __getitem__(self, index: int | slice) -> Entry | tuple[Entry, ...]:
        if isinstance(index, slice):
            return tuple(self[place] for place in range(*index.indices(len(self))))
        found = self._found[index]
        if found is None:
            return None
        scores, row = found
        pairs = zip(scores.ids[row].tolist(), scores.values[row].tolist(), strict=True)
        return PromptLogprob(
            alternative(self._tokenizer, int(self._prompt[index]), float(scores.logprob[row])),
            tuple(alternative(self._tokenizer, *pair) for pair in pairs),
            int(scores.rank[row]),
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(cast("Sequence[Any]", other))

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __reduce__(self) -> tuple[type, tuple[tuple[Entry, ...]]]:
        """Pickle a tuple: the tokenizer stays here."""
        return tuple, (tuple(self),)

    def __repr__(self) -> str:
        return repr(tuple(self))


def alternative(tokenizer: Tokenizer, id: int, logprob: float) -> Alternative:
    spelled = tokenizer.token_bytes(id)
    return Alternative(id, logprob, spelled.decode(errors="replace"), spelled)
