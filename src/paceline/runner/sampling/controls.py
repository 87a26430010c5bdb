"""The sampling settings of a batch as tensors."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Protocol

import torch
from torch import Tensor

from paceline.core.errors import StepError
from paceline.core.sampling import Sampling
from paceline.runner.sampling.token_choice import (
    DraftedDraw,
    Filter,
    Greedy,
    MinP,
    Penalties,
    RandomDraw,
    TokenCounts,
    TopK,
    TopP,
)
from paceline.runner.tensors import to_ints

FOREVER = 1 << 62


@dataclass(frozen=True, slots=True)
class SequenceSampling:
    """The sampling settings of one sequence, from admission to release."""

    sampling: Sampling
    key: int  # for its random numbers
    free_at: int  # the first position at which it may stop
    stops: tuple[int, ...]  # tokens forbidden before that position
    line: int  # line of its token counts; -1: not counted
    prompt: int = 0  # tokens of its prompt


class LogitEdit(Protocol):
    """Changes the logits of some rows in place.

    `ahead` [rows, ahead] are tokens before the positions [rows] that are not counted yet; -1 means
    no token.
    """

    def apply(self, logits: Tensor, positions: Tensor, ahead: Tensor) -> None: ...


@dataclass(frozen=True, slots=True, eq=False)
class AllowedTokens:
    """Allows only listed tokens. It adds -inf, since a mask would hide NaN."""

    rows: Tensor  # [restricted]
    amounts: Tensor  # [restricted, vocab]; 0 or -inf

    def apply(self, logits: Tensor, positions: Tensor, ahead: Tensor) -> None:
        logits.index_add_(0, self.rows, self.amounts)


@dataclass(frozen=True, slots=True, eq=False)
class LogitBiases:
    """Adds amounts to single tokens: biases, forbidden tokens, stop tokens before min_tokens."""

    rows: Tensor  # [amounts]
    ids: Tensor  # [amounts]
    amounts: Tensor  # [amounts]
    until: Tensor  # [amounts]; position from which the amount is not added

    def apply(self, logits: Tensor, positions: Tensor, ahead: Tensor) -> None:
        now = torch.where(positions[self.rows] < self.until, self.amounts, 0.0)
        logits.index_put_((self.rows, self.ids), now, accumulate=True)


@dataclass(frozen=True, slots=True, eq=False)
class ProcessedRow:
    """Applies a request's logits processors to its row, on a CPU."""

    row: int
    resident: SequenceSampling
    tally: TokenCounts

    def apply(self, logits: Tensor, positions: Tensor, ahead: Tensor) -> None:
        before = int(positions[self.row]) - int((ahead[self.row] >= 0).sum())
        tokens = to_ints(self.tally.tokens[self.resident.line, self.resident.prompt : before])
        tokens += [one for one in to_ints(ahead[self.row]) if one >= 0]
        found = logits[self.row].clone()
        for processor in self.resident.sampling.logits_processors:
            found = processor(tokens, found)
            if not isinstance(found, Tensor) or found.shape != logits[self.row].shape:
                raise StepError(f"a logits processor returned {found!r:.80}; it must return logits")
        logits[self.row] = found


@dataclass(frozen=True, slots=True, eq=False)
class ProcessedRows:
    """The rows with logits processors."""

    rows: tuple[ProcessedRow, ...]

    def apply(self, logits: Tensor, positions: Tensor, ahead: Tensor) -> None:
        for one in self.rows:
            one.apply(logits, positions, ahead)


class SamplingGroup(Protocol):
    """Rows with the same kind of sampling."""

    @property
    def rows(self) -> Tensor | slice: ...

    def choose(
        self, logits: Tensor, positions: Tensor, drafts: DraftedDraw | None = None
    ) -> tuple[Tensor, Tensor]:
        """Sample a token id for each of its rows. Returns the ids and the largest logits."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class ScoredRows:
    """Rows that report log-probabilities, and the largest number of alternatives.

    `named` has the alternatives that requests list, and -1 where the likeliest are reported.
    """

    rows: Tensor  # [scored]
    most: int
    named: Tensor | None = None  # [scored, most]; None: no row names any


@dataclass(frozen=True, slots=True, eq=False)
class Controls:
    """Sampling settings of the rows of a batch. Features that no row uses cost nothing.

    They are valid while the same sequences are in the same rows. All that changes from step to
    step is in tensors, so the operations of a step are fixed.
    """

    count: int  # rows
    edits: tuple[LogitEdit, ...]  # in order of application
    groups: tuple[SamplingGroup, ...]  # every row is in one group
    scored: ScoredRows | None
    penalties: Penalties | None  # the last edit, if any row has penalties

    @staticmethod
    def of(residents: Sequence[SequenceSampling], tally: TokenCounts) -> "Controls":
        penalties = penalties_of(residents, tally)
        edits = (
            allowed_of(residents, tally.vocab, tally.device),
            biases_of(residents, tally.vocab, tally.device),
            penalties,
            processors_of(residents, tally),
        )
        return Controls(
            count=len(residents),
            edits=tuple(edit for edit in edits if edit is not None),
            groups=groups_of(residents, tally.vocab, tally.device),
            scored=scored_of(residents, tally.vocab, tally.device),
            penalties=penalties,
        )

    def observe(self, ids: Tensor, positions: Tensor) -> None:
        """Count new tokens [rows] at these positions, or [rows, width] from there on.

        Negative ids are not counted.
        """
        if self.penalties is not None:
            self.penalties.observe(ids.reshape(self.count, -1), positions)


def indices(values: Sequence[int], device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=torch.long, device=device)


def column(values: Sequence[float], kind: torch.dtype, device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=kind, device=device)[:, None]


def allowed_of(
    residents: Sequence[SequenceSampling], vocab: int, device: torch.device
) -> AllowedTokens | None:
    lists = {
        row: resident.sampling.allowed_token_ids
        for row, resident in enumerate(residents)
        if resident.sampling.allowed_token_ids is not None
    }
    if not lists:
        return None
    amounts = torch.full((len(lists), vocab), -inf)
    for line, ids in zip(amounts, lists.values(), strict=True):
        line[[token for token in ids if token < vocab]] = 0.0
    return AllowedTokens(indices(list(lists), device), amounts.to(device))


def biases_of(
    residents: Sequence[SequenceSampling], vocab: int, device: torch.device
) -> LogitBiases | None:
    rows: list[int] = []
    ids: list[int] = []
    amounts: list[float] = []
    until: list[int] = []
    for row, resident in enumerate(residents):
        wanted = [(token, bias, FOREVER) for token, bias in resident.sampling.logit_bias.items()]
        wanted += [(token, -inf, FOREVER) for token in resident.sampling.bad_token_ids]
        wanted += [(token, -inf, resident.free_at) for token in resident.stops]
        for token, amount, end in wanted:
            if token < vocab:  # others are not in the vocabulary
                rows.append(row)
                ids.append(token)
                amounts.append(amount)
                until.append(end)
    if not rows:
        return None
    return LogitBiases(
        indices(rows, device),
        indices(ids, device),
        torch.tensor(amounts, device=device),
        indices(until, device),
    )


def penalties_of(residents: Sequence[SequenceSampling], tally: TokenCounts) -> Penalties | None:
    lines = {row: resident.line for row, resident in enumerate(residents) if resident.line >= 0}
    if not lines:
        return None
    asked = [residents[row].sampling for row in lines]
    return Penalties(tally, list(lines), list(lines.values()), asked)


def processors_of(
    residents: Sequence[SequenceSampling], tally: TokenCounts
) -> "ProcessedRows | None":
    rows = tuple(
        ProcessedRow(row, resident, tally)
        for row, resident in enumerate(residents)
        if resident.sampling.logits_processors
    )
    return ProcessedRows(rows) if rows else None


def scored_of(
    residents: Sequence[SequenceSampling], vocab: int, device: torch.device
) -> ScoredRows | None:
    asked = {
        row: resident.sampling.logprobs
        for row, resident in enumerate(residents)
        if resident.sampling.logprobs is not None
    }
    if not asked:
        return None
    most = min(max(asked.values()), vocab)
    names = [residents[row].sampling.logprob_token_ids for row in asked]
    if not any(names):
        return ScoredRows(indices(list(asked), device), most)
    lines = [[*ids, *[-1] * (most - len(ids))] for ids in names]
    named = torch.tensor(lines, dtype=torch.long, device=device)
    return ScoredRows(indices(list(asked), device), most, named)


def filters_of(sampling: Sampling, vocab: int) -> tuple[type[Filter], ...]:
    """The kinds of filters of a row, in order."""
    floor = (MinP,) if sampling.min_p > 0.0 else ()
    if 0 < sampling.top_k < vocab:
        return *floor, TopK
    return (*floor, TopP) if sampling.top_p < 1.0 else floor


def filter_of(kind: type[Filter], asked: Sequence[Sampling], device: torch.device) -> Filter:
    if kind is MinP:
        return MinP(column([each.min_p for each in asked], torch.float, device))
    share = column([each.top_p for each in asked], torch.double, device)
    if kind is TopP:
        return TopP(share)
    counts = [each.top_k for each in asked]
    return TopK(column(counts, torch.long, device), max(counts), share)


def groups_of(
    residents: Sequence[SequenceSampling], vocab: int, device: torch.device
) -> tuple[SamplingGroup, ...]:
    """Group rows by filters, so that each row computes only its own."""
    greedy = [row for row, resident in enumerate(residents) if resident.sampling.greedy]
    by_need: dict[tuple[type[Filter], ...], list[int]] = {}
    for row, resident in enumerate(residents):
        if not resident.sampling.greedy:
            by_need.setdefault(filters_of(resident.sampling, vocab), []).append(row)
    groups: list[SamplingGroup] = [Greedy(row_index(greedy, device))] if greedy else []
    for kinds, rows in by_need.items():
        asked = [residents[row].sampling for row in rows]
        groups.append(
            RandomDraw(
                rows=row_index(rows, device),
                keys=indices([residents[row].key for row in rows], device),
                temperature=column([each.temperature for each in asked], torch.float, device),
                filters=tuple(filter_of(kind, asked, device) for kind in kinds),
            )
        )
    return tuple(groups)


def row_index(rows: list[int], device: torch.device) -> Tensor | slice:
    """Ascending rows as an index, or as a slice if they are adjacent, which copies nothing."""
    if rows[-1] - rows[0] == len(rows) - 1:
        return slice(rows[0], rows[-1] + 1)
    return indices(rows, device)
