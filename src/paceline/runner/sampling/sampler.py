"""Sample tokens from logits, verify drafts, and compute log-probabilities."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import torch
import torch.nn.functional as F
from torch import Tensor

from paceline.core.arrays import I32
from paceline.core.errors import StepError
from paceline.core.request import Request
from paceline.runner.sampling.controls import Controls, SamplingGroup, SequenceSampling
from paceline.runner.sampling.rejection import DrawnDrafts
from paceline.runner.sampling.token_choice import (
    CELL,
    HALF,
    UNIT,
    TokenCounts,
    by_cells,
    key_of,
    masses,
    relative_weights,
)


@dataclass(frozen=True, slots=True, eq=False)
class TokenScores:
    """Log-probabilities of a given token and of the likeliest tokens, from unmodified logits.

    Alternatives are in descending order, ties by ascending id, so the first few do not depend on
    their number. Listed alternatives are in the order of their ids.
    """

    given: Tensor  # [scored]
    rank: Tensor  # [scored]; 1 for the likeliest
    ids: Tensor  # [scored, alternatives]
    values: Tensor  # [scored, alternatives]


@dataclass(frozen=True, slots=True, eq=False)
class Sampled:
    """One token per row. A bad row has no finite logits; its id is 0 and meaningless."""

    ids: Tensor  # [rows]
    bad: Tensor  # [rows]
    scores: TokenScores | None  # of the rows in `controls.scored`


@dataclass(frozen=True, slots=True, eq=False)
class Verified:
    """The first `count` ids of a row are those that it would sample without drafts; then -1.

    If the row is bad, the last of them has no finite logits.
    """

    ids: Tensor  # [rows, 1 + drafts]
    count: Tensor  # [rows]
    bad: Tensor  # [rows]
    scores: tuple[TokenScores | None, ...]  # of each of the 1 + drafts positions


def seed_of(request: Request) -> int:
    """The seed of a request, or one derived from its id, which is the same after preemption."""
    if request.seed is not None:
        return request.seed
    digest = blake2b(request.id.encode(errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def score(
    logits: Tensor, ids: Tensor, alternatives: int, named: Tensor | None = None
) -> TokenScores:
    """Score the given ids [scored] and the likeliest ids by logits [scored, vocab].

    Ids in `named` [scored, alternatives] other than -1 replace the likeliest.
    """
    peak = logits.amax(-1, keepdim=True)
    total = mass(relative_weights(logits - peak))
    norm = peak + total.log()[:, None]  # [scored, 1]
    given = logits.gather(-1, ids[:, None])
    above = torch.gt(logits, given, out=torch.empty_like(logits))
    best = likeliest(logits, alternatives)
    if named is not None:
        best = torch.where(named < 0, best, named)
    return TokenScores(
        given=(given - norm)[:, 0].float(),
        rank=mass(above).long() + 1,
        ids=best,
        values=(logits.gather(-1, best) - norm).float(),
    )


def mass(weights: Tensor) -> Tensor:
    """The sum of each row, in double precision. Torch divides the sum of a single long row among
    threads. The sums of cells are whole numbers, whose sum is exact in any order."""
    missing = -weights.shape[-1] % CELL
    cells = by_cells(F.pad(weights, (0, missing)) if missing else weights)
    return masses(cells.sum(-1)).sum(-1).double() / UNIT


def likeliest(logits: Tensor, count: int) -> Tensor:
    """The ids of the largest logits in descending order, ties by ascending id.

    The `count` largest logits are in the `count` cells with the largest maxima, ties by index.
    """
    count = min(count, logits.shape[-1])  # beams with many stop tokens may need more
    cells = by_cells(logits)  # [rows, cells, cell]
    size, width = cells.shape[1:]
    numbers = torch.arange(size, device=logits.device).expand(len(logits), size)
    best = foremost(cells.amax(-1), numbers, min(count, size))  # [rows, best]
    ids = best[:, :, None] * width + torch.arange(width, device=logits.device)
    ids = ids.flatten(1)  # [rows, best * cell]
    return foremost(logits.gather(-1, ids), ids, count)


def foremost(values: Tensor, ids: Tensor, count: int) -> Tensor:
    """The ids of the largest values in descending order, ties by ascending id.

    Value and id form one integer key: the bits of the value, mapped to be monotonic, above the
    complement of the id.
    """
    bits = (values + 0.0).view(torch.int32)  # negative zero becomes zero
    rising = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    keys = (rising.long() << 32) | (HALF - ids)
    return HALF - (keys.topk(count).values & HALF)  # [rows, count]


def by_groups(
    logits: Tensor,
    groups: Sequence[SamplingGroup],
    positions: Tensor,
    drafts: DrawnDrafts | None = None,
) -> tuple[Tensor, Tensor]:
    """The token id of each row, and its largest logit."""
    if len(groups) == 1:
        return groups[0].choose(logits, positions, drafts)
    ids = positions.new_empty(len(logits), dtype=torch.long)
    peak = logits.new_empty(len(logits))
    for group in groups:
        rows = group.rows
        part = logits[rows] if isinstance(rows, slice) else logits.index_select(0, rows)
        drawn = None if drafts is None else drafts.of(rows)
        ids[rows], peak[rows] = group.choose(part, positions[rows], drawn)
    return ids, peak


def chosen(
    logits: Tensor,
    controls: Controls,
    positions: Tensor,
    ahead: Tensor,
    drafts: DrawnDrafts | None = None,
) -> Sampled:
    """Sample a token for each row, after tokens `ahead` [rows, ahead] that are not counted yet.
    `drawn` are drafts of this position that were drawn at random."""
    scored = controls.scored
    raw = None if scored is None else logits.index_select(0, scored.rows)
    for edit in controls.edits:
        edit.apply(logits, positions, ahead)
    ids, peak = by_groups(logits, controls.groups, positions, drafts)
    bad = (peak - peak) != 0.0  # nonzero for infinities and NaN
    ids = ids.masked_fill(bad, 0)
    if scored is None or raw is None:
        return Sampled(ids, bad, None)
    given = ids.index_select(0, scored.rows)
    return Sampled(ids, bad, score(raw, given, scored.most, scored.named))


def drawn_at(offset: int, drafts: Tensor, probabilities: Tensor | None) -> DrawnDrafts | None:
    """The randomly drawn drafts at one offset, if any; the last offset has none."""
    if probabilities is None or offset == drafts.shape[1]:
        return None
    return DrawnDrafts(drafts[:, offset], probabilities[:, offset])


class Sampler:
    """Sampling settings and token counts of every resident sequence, by slot.

    A batch is any list of slots. Its `Controls` are valid while the list and the sequences of its
    slots stay the same; `Controls.observe` counts tokens in the meantime.
    """

    def __init__(self, vocab: int, max_model_len: int, device: torch.device) -> None:
        self.vocab = vocab
        self._tally = TokenCounts(vocab, max_model_len, device)
        self._residents: dict[int, SequenceSampling] = {}

    def admit(self, slot: int, request: Request, tokens: I32) -> None:
        """Add a sequence. `tokens` are all its tokens so far, prompt included."""
        assert slot not in self._residents, f"slot {slot} is taken"
        prompt, sampling = len(request.prompt), request.sampling
        # A constraint decides itself when an end token is allowed.
        ends = request.eos_token_ids if request.constraint is None else ()
        stops = ends + request.stop_token_ids
        self._residents[slot] = SequenceSampling(
            sampling=sampling,
            key=key_of(seed_of(request)),
            free_at=prompt + request.min_tokens,
            stops=stops if request.min_tokens else (),
            prompt=prompt,
            line=self._tally.open(tokens, prompt) if sampling.penalised else -1,
        )

    def release(self, slot: int) -> None:
        line = self._residents.pop(slot).line
        if line >= 0:
            self._tally.close(line)

    def controls(self, slots: Iterable[int]) -> Controls:
        """The controls of the sequences in these slots."""
        return Controls.of([self._residents[slot] for slot in slots], self._tally)

    def sample(self, logits: Tensor, controls: Controls, positions: Tensor) -> Sampled:
        """Sample a token for each row at its position [rows]. Overwrites logits [rows, vocab]."""
        self._check(logits, controls.count, self.vocab)
        return chosen(logits, controls, positions, positions.new_empty(controls.count, 0))

    def verify(
        self,
        logits: Tensor,
        drafts: Tensor,
        controls: Controls,
        positions: Tensor,
        at: Tensor | None = None,
        probabilities: Tensor | None = None,
    ) -> Verified:
        """Sample tokens from each row's position on, as long as they equal its drafts.

        Overwrites logits [rows, 1 + drafts, vocab], computed with the drafts [rows, drafts]; or
        logits [lines, vocab], with line `at[row, i]` for offset i of a row. A draft of -1 means no
        draft. Each offset is sampled as if the drafts before it were accepted; drafts are compared
        afterwards. Randomly drawn drafts come with their probabilities [rows, drafts, vocab].
        """
        width = drafts.shape[1] + 1
        if at is None:
            self._check(logits, controls.count, width, self.vocab)
        else:
            self._check(logits, len(logits), self.vocab)
        sampled_at = [
            chosen(
                logits[:, offset] if at is None else logits.index_select(0, at[:, offset]),
                controls,
                positions + offset,
                drafts[:, :offset],
                drawn_at(offset, drafts, probabilities),
            )
            for offset in range(width)
        ]
        ids = torch.stack([sampled.ids for sampled in sampled_at], 1)  # [rows, 1 + drafts]
        bad = torch.stack([sampled.bad for sampled in sampled_at], 1)
        right = (ids[:, :-1] == drafts) & ~bad[:, :-1]
        count = right.long().cumprod(-1).sum(-1) + 1  # [rows]
        beyond = torch.arange(width, device=logits.device) >= count[:, None]
        return Verified(
            ids=ids.masked_fill(beyond, -1),
            count=count,
            bad=bad.gather(1, count[:, None] - 1)[:, 0],
            scores=tuple(sampled.scores for sampled in sampled_at),
        )

    def _check(self, logits: Tensor, *shape: int) -> None:
        if logits.shape != shape or logits.dtype != torch.float32:
            found = f"{list(logits.shape)} of {logits.dtype}"
            raise StepError(f"logits are {found}; they must be {list(shape)} of torch.float32")
