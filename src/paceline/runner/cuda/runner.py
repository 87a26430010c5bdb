"""Carries out plans on a card: launched ahead, and read back when somebody waits."""

from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paceline.core.arrays import I32
from paceline.core.errors import StepError
from paceline.core.plan import Plan, Rows, StepResult
from paceline.core.request import Request
from paceline.runner.cuda.columns import settle
from paceline.runner.cuda.graphs import Capturable, Graphs
from paceline.runner.cuda.model import CudaModel
from paceline.runner.cuda.sampling import choose, is_plain
from paceline.runner.cuda.staging import Returns
from paceline.runner.cuda.state import CardState
from paceline.runner.kv_store import KVStore
from paceline.runner.result import Result
from paceline.runner.sampler import Sampler, Scores
from paceline.runner.sampling_controls import Controls


@dataclass(frozen=True, slots=True, eq=False)
class Launched:
    """A step on its way. Whatever is still on the card is fetched when it is waited for."""

    plan: Plan
    wanted: np.ndarray  # rows that sample
    ticket: Any  # of their ids
    controls: Controls | None = None
    scores: Scores | None = None
    raw: tuple[tuple[int, Request, Tensor], ...] = ()  # logits of rows told of only at the end


@dataclass(frozen=True, slots=True, eq=False)
class Batching:
    """What holds for as long as plans have the same rows."""

    rows: Rows
    wanted: np.ndarray  # rows that sample, in their order on the card: who reads most goes first
    is_decode: bool  # one position each, and every row samples
    is_plain: bool  # nobody asks for more than a temperature


class CudaRunner:
    """Runs plans in the order in which it gets them, and returns from `launch` before they end.

    The store has one block more than plans know of, for rows that fill up a batch.
    """

    def __init__(
        self, model: CudaModel, kv: KVStore, attention: Capturable, slots: int, max_model_len: int
    ) -> None:
        self._model, self._kv, self._attention = model, kv, attention
        self.state = CardState(slots, max_model_len, kv)
        self.graphs = Graphs(model, kv, attention, self.state, slots)
        self._sampler = Sampler(model.config.vocab, max_model_len, kv.content.device)
        self._requests: dict[int, Request] = {}  # by slot
        self._plain = np.zeros(slots, np.bool_)
        self._same: Batching | None = None
        self._controls: Controls | None = None
        self._returns = Returns(slots)
        self._host = torch.empty((0, *kv.content.shape[1:]), dtype=kv.dtype)
        self._flight: deque[Launched] = deque()

    def reserve_host(self, blocks: int) -> None:
        """Make room on the host for swapping."""
        shape = (blocks, *self._kv.content.shape[1:])
        self._host = torch.empty(shape, dtype=self._kv.dtype, pin_memory=True)

    @torch.inference_mode()
    def warm(self) -> None:
        """Capture the graphs of every batch size."""
        for _ in self.graphs.capture(samples=True):
            pass

    @torch.inference_mode()
    def launch(self, plan: Plan) -> None:
        self._take_over(plan)
        if plan.empty:
            return
        self._move(plan)
        if not len(plan.rows):
            self._flight.append(Launched(plan, np.empty(0, np.intp), None))
            return
        if plan.rows.drafts.any():
            raise StepError(f"step {plan.step}: drafts are not computed on a card")
        same = self._batching(plan)
        self._flight.append(self._decode(plan, same) if same.is_decode else self._mixed(plan, same))

    def wait(self) -> StepResult:
        step = self._flight.popleft()
        if step.ticket is None:
            return StepResult.of(step.plan, {})
        ids = self._returns.read(step.ticket)
        if ids.min() < 0:
            names = [step.plan.rows.labels[step.wanted[row]] for row in np.flatnonzero(ids < 0)]
            raise StepError(f"step {step.plan.step}: the logits of {names} are no numbers")
        if step.controls is None and len(ids) == len(step.plan.rows):
            found = np.empty((len(ids), 1), np.int32)
            found[step.wanted, 0] = ids
            return StepResult(found, np.ones(len(ids), np.int32))
        return told(step, torch.from_numpy(ids).long()[:, None])

    def close(self) -> None:
        self._flight.clear()
        torch.cuda.synchronize()

    # -- what a plan tells --------------------------------------------------

    def _take_over(self, plan: Plan) -> None:
        for slot in plan.released:
            if self._requests.pop(slot, None) is not None:
                self._sampler.release(slot)
        vocab = self._model.config.vocab
        for new in plan.admitted:
            request = self._requests[new.slot] = new.request
            self._sampler.admit(new.slot, request, new.tokens)
            is_free = not request.min_tokens and not request.silent
            self._plain[new.slot] = is_free and is_plain(request.sampling, vocab)
        self.state.apply(plan)
        if plan.admitted or plan.released:
            self._same = self._controls = None

    def _move(self, plan: Plan) -> None:
        if plan.copies:
            self._kv.copy(plan.copies)
        for device, host in plan.swap_out:
            self._host[host].copy_(self._kv.content[device], non_blocking=True)
        for host, device in plan.swap_in:
            self._kv.content[device].copy_(self._host[host], non_blocking=True)

    def _batching(self, plan: Plan) -> Batching:
        rows, same = plan.rows, self._same
        if same is None or same.rows is not rows:
            wanted = np.flatnonzero(rows.samples)
            is_decode = len(wanted) == len(rows) == int(rows.count.sum())
            is_plain = bool(self._plain[rows.slot[wanted]].all())
            # Programs that start last should be short. Without graphs, rows stay as they are.
            order = np.argsort(-plan.start, kind="stable") if is_decode else wanted
            same = self._same = Batching(rows, order, is_decode, is_plain)
            self._controls = None
            if is_decode:
                size = self.graphs.size(len(rows))
                self.graphs.slot[:size] = self.state.slots(rows.slot[order].astype(np.int32), size)
        return same

    # -- a step -------------------------------------------------------------

    def _decode(self, plan: Plan, same: Batching) -> Launched:
        rows = len(plan.rows)
        size = self.graphs.size(rows)
        contexts: I32 = np.ones(size, np.int32)
        contexts[:rows] += plan.start[same.wanted]
        logits = self.graphs.replay(size, contexts, same.is_plain)
        if same.is_plain:
            return Launched(plan, same.wanted, self._returns.fetch(self.graphs.ids[:rows]))
        slot, context = self.graphs.slot[:rows], self.graphs.context[:rows]
        return self._sample(plan, same, logits[:rows], slot, context)

    def _mixed(self, plan: Plan, same: Batching) -> Launched:
        batch, cells, slot = self.state.batch(plan)
        prepared = self._attention.prepare(batch, self._kv)
        hidden = self._model.forward(batch, cells, self._kv, prepared)
        self.state.advance(slot, batch.context)
        if not len(same.wanted):
            return Launched(plan, same.wanted, None)
        logits = self._model.logits(hidden.index_select(0, batch.sample_at))
        context = batch.position.index_select(0, batch.sample_at) + 1
        own = self.state.slots(plan.rows.slot[same.wanted].astype(np.int32), len(same.wanted))
        if not same.is_plain:
            return self._sample(plan, same, logits, own, context)
        state, ids = self.state, torch.empty_like(own)
        choose(logits, state.temperature, state.key, own, context, ids)
        settle(state.tokens, state.position, own, context, ids)
        return Launched(plan, same.wanted, self._returns.fetch(ids))

    def _sample(
        self, plan: Plan, same: Batching, logits: Tensor, slot: Tensor, context: Tensor
    ) -> Launched:
        """Rows that ask for more than a temperature, all by the sampler."""
        rows, first = plan.rows, context.long()
        own = rows.slot[same.wanted].tolist()
        if self._controls is None:
            self._controls = self._sampler.controls(own)
        controls, scores = self._controls, logits.float()
        asked = [self._requests[place] for place in own]
        raw = tuple(
            (row, request, scores[row].clone())
            for row, request in enumerate(asked)
            if request.silent
        )
        sampled = self._sampler.sample(scores, controls, first)
        controls.observe(sampled.ids, first)
        ids = sampled.ids.masked_fill(sampled.bad, -1).int()
        settle(self.state.tokens, self.state.position, slot, context, ids)
        ticket = self._returns.fetch(ids)
        return Launched(plan, same.wanted, ticket, controls, sampled.scores, raw)


def told(step: Launched, ids: Tensor) -> StepResult:
    """The result of a step of which not every row sampled, or some want to know more."""
    result = Result(step.plan, step.wanted, ids, torch.ones(len(ids), dtype=torch.long))
    if step.controls is not None:
        found = step.scores
        if found is not None:
            found = Scores(found.given.cpu(), found.rank.cpu(), found.ids.cpu(), found.values.cpu())
        result.tell(step.controls, (found,))
        for row, request, raw in step.raw:
            result.tell_one(row, raw.cpu()[None], ids[row], request)
    return result.whole()
