"""Tokens of steps with several ranks: rank 0 samples and sends them to the others."""

from dataclasses import replace

import torch
from torch import Tensor

from paceline.core.masks import TokenMasks
from paceline.core.plan import Plan, StepResult
from paceline.core.settings.features import SpeculationConfig
from paceline.runner.batch import Batch
from paceline.runner.models.model import Model
from paceline.runner.parallel.group import RankGroup, decides
from paceline.runner.prompt_reports import PromptReport
from paceline.runner.proposer import Drafter, DraftInput, Drafts
from paceline.runner.sampling.sampler import Sampler
from paceline.runner.step_tokens import ChosenTokens, StepTokens, TokenSource, first_positions


class AwaitedDrafts(Drafter):
    """Receives rank 0's drafts on another rank, without the drafter's weights and KV.

    It has the traits of that drafter, so that all ranks take the same path through a step, and
    reserves the same memory for each block.
    """

    def __init__(self, config: SpeculationConfig, kind: type[Drafter], cell_bytes: int = 0) -> None:
        super().__init__(config)
        self.on_device, self.draws, self.reads_tokens = (
            kind.on_device,
            kind.draws,
            kind.reads_tokens,
        )
        self.cell_bytes = cell_bytes

    def draft(self, rows: DraftInput) -> Drafts:
        """Empty drafts, into which the runner receives those of rank 0."""
        shape = len(rows.slot), rows.most
        return Drafts(torch.empty(shape, dtype=torch.int64, device=rows.slot.device))


class SharedTokens:
    """Samples on rank 0, and sends the tokens to the other ranks."""

    def __init__(self, source: TokenSource, group: RankGroup) -> None:
        self._source, self._group = source, group

    def apply(self, plan: Plan) -> None:
        self._source.apply(plan)

    def draft(self, plan: Plan, rows: DraftInput) -> Drafts:
        drafts = self._source.draft(plan, rows)
        return replace(drafts, ids=self._group.share(drafts.ids.long().contiguous()))

    def choose(
        self, plan: Plan, batch: Batch, logits: Tensor, drafts: Drafts | None
    ) -> ChosenTokens:
        found = self._source.choose(plan, batch, logits, drafts)
        self._group.share(torch.cat((found.ids, found.taken[:, None]), dim=1))
        return found

    def reported(self, report: PromptReport, result: StepResult, hidden: Tensor) -> StepResult:
        return self._source.reported(report, result, hidden)


class ReceivedTokens:
    """Receives the tokens of rank 0 on another rank. Its results are empty: only those of rank 0
    are committed."""

    def __init__(self, model: Model, group: RankGroup) -> None:
        self._model, self._group = model, group

    def apply(self, plan: Plan) -> None:
        """Do nothing: only rank 0 samples."""

    def draft(self, plan: Plan, rows: DraftInput) -> Drafts:
        return Drafts(self._group.share(rows.tokens.new_empty(len(rows.number), rows.most)))

    def choose(
        self, plan: Plan, batch: Batch, logits: Tensor, drafts: Drafts | None
    ) -> ChosenTokens:
        first, _ = first_positions(plan, batch)
        width = 1 if drafts is None else 1 + drafts.ids.shape[1]
        found = self._group.share(first.new_empty(len(first), width + 1))
        return ChosenTokens(first, found[:, :-1], found[:, -1], StepResult.of(plan, {}))

    def reported(self, report: PromptReport, result: StepResult, hidden: Tensor) -> StepResult:
        report.take_part(hidden, self._model)
        return result


def token_source(
    model: Model, drafter: Drafter, sampler: Sampler, masks: TokenMasks | None
) -> TokenSource:
    """The token source of a runner on this rank."""
    group = model.group
    if group is None:
        return StepTokens(model, drafter, sampler, masks)
    if not decides(group):
        return ReceivedTokens(model, group)
    return SharedTokens(StepTokens(model, drafter, sampler, masks), group)
