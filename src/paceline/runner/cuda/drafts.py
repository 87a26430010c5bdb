"""Steps with drafts on a GPU: the host proposes, the GPU computes, the sampler verifies."""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from paceline.core.plan import Plan, StepResult
from paceline.core.request import Request
from paceline.runner.attention.backend import Attention
from paceline.runner.cuda.model import CudaModel
from paceline.runner.cuda.prompt_scores import PromptScorer, ScoredPrompts
from paceline.runner.cuda.state import CudaState
from paceline.runner.kv_store import KVStore
from paceline.runner.proposer import Proposer, filled
from paceline.runner.result import ResultBuilder
from paceline.runner.sampler import Sampler, TokenScores


class DraftedSteps:
    """The host reads tokens to propose drafts, so a step with drafts starts after all earlier steps
    have ended, and its result is complete when `launch` returns."""

    def __init__(
        self,
        model: CudaModel,
        kv: KVStore,
        attention: Attention,
        proposer: Proposer,
        prompts: PromptScorer,
    ) -> None:
        self._model, self._kv, self._attention, self._prompts = model, kv, attention, prompts
        self._proposer = proposer

    def run(
        self, plan: Plan, state: CudaState, sampler: Sampler, requests: dict[int, Request]
    ) -> StepResult:
        """Compute a plan with drafts. Only the GPU knows the positions of its rows."""
        rows = plan.rows
        plan = replace(plan, start=state.stands(rows.slot))
        wanted = np.flatnonzero(rows.samples)
        number = rows.drafts[wanted]
        first = (plan.start + rows.count - rows.drafts)[wanted]  # where the sampled token goes
        drafts = self._propose(state, rows.slot[wanted], first, number)
        logits, prompt = self._logits(plan, state, wanted, drafts.shape[1])
        asked = [requests[slot] for slot in rows.slot[wanted].tolist()]
        quiet = [row for row, request in enumerate(asked) if request.silent]
        raw = logits[quiet].cpu()
        controls = sampler.controls(rows.slot[wanted].tolist())
        places = torch.from_numpy(first.astype(np.int64)).to(logits.device)
        found = sampler.verify(logits, drafts, controls, places)
        controls.observe(found.ids, places)
        state.settle(rows.slot[wanted], places, found.ids, found.count)
        result = ResultBuilder(plan, wanted, found.ids.cpu(), found.count.cpu())
        result.fail(found.bad.cpu())
        result.add_logprobs(controls, tuple(map(on_host, found.scores)))
        for row, own in zip(quiet, raw, strict=True):
            result.add_silent_logprobs(row, own, found.ids[row].cpu(), asked[row])
        whole = result.build()
        return whole if prompt is None else replace(whole, prompt=prompt.read())

    def _propose(
        self, state: CudaState, slot: np.ndarray, first: np.ndarray, number: np.ndarray
    ) -> Tensor:
        """Return drafts [samples, most drafts], and write them after the known tokens."""
        known, places = (torch.from_numpy(one.astype(np.int64)) for one in (first, number))
        device = state.tokens.device
        tokens = state.tokens[torch.from_numpy(slot).to(device), : int(first.max())].cpu().long()
        drafts = self._proposer.propose(tokens, known, places, int(number.max()))
        state.write(slot, known.to(device), filled(drafts, places).to(device))
        return drafts.to(device)

    def _logits(
        self, plan: Plan, state: CudaState, wanted: np.ndarray, most: int
    ) -> tuple[Tensor, ScoredPrompts | None]:
        """Return logits after each place of a draft, [samples, 1 + most drafts, vocab], and the
        scores of prompts."""
        batch, cells, slot = state.batch(plan)
        prepared = self._attention.prepare(batch, self._kv)
        last = batch.starts[1:][wanted] - 1
        places = (last - plan.rows.drafts[wanted])[:, None] + np.arange(1 + most)
        at = torch.from_numpy(np.minimum(places, last[:, None]).astype(np.int64)).flatten()
        at = at.to(cells.device)
        is_asked = bool(self._prompts.spans(plan))  # prompt scores need any position
        hidden = self._model.forward(batch, cells, self._kv, prepared, None if is_asked else at)
        state.advance(slot, batch.context)
        prompt = self._prompts.score(plan, hidden)
        logits = self._model.logits(hidden.index_select(0, at) if is_asked else hidden)
        return logits.float().view(len(wanted), 1 + most, -1), prompt


def on_host(scores: TokenScores | None) -> TokenScores | None:
    if scores is None:
        return None
    return TokenScores(scores.given.cpu(), scores.rank.cpu(), scores.ids.cpu(), scores.values.cpu())
