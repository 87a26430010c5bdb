"""Matchers of any libraries that advance together."""

from collections.abc import Iterable, Sequence

import numpy as np

from paceline.core.arrays import I32, Index
from paceline.structured.backend import Matcher, MatcherGroup


class MatcherBatch:
    """Matchers by their class, with one call for each class. See `backend.MatcherGroup`."""

    def __init__(self, matchers: Sequence[Matcher]) -> None:
        kinds: dict[type[Matcher], None] = dict.fromkeys(map(type, matchers))
        self._groups: list[tuple[Index, MatcherGroup]] = []
        for kind in kinds:
            own = [place for place, one in enumerate(matchers) if type(one) is kind]
            group = kind.group([matchers[place] for place in own])
            self._groups.append((np.array(own, np.intp), group))

    def accept(self, tokens: I32) -> dict[int, str]:
        if len(self._groups) == 1:
            return self._groups[0][1].accept(tokens.tolist())
        return by_place((own, group.accept(tokens[own].tolist())) for own, group in self._groups)

    def fill(self, mask: I32, at: Index) -> dict[int, str]:
        if len(self._groups) == 1:
            return self._groups[0][1].fill(mask, at.tolist())
        return by_place((own, group.fill(mask, at[own].tolist())) for own, group in self._groups)


def by_place(found: Iterable[tuple[Index, dict[int, str]]]) -> dict[int, str]:
    """What is wrong by place in the batch, from the same by place in each group."""
    return {int(own[place]): text for own, wrong in found for place, text in wrong.items()}
