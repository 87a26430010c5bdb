"""Carries out plans on a card: launched ahead, and read back when somebody waits."""

from collections import deque
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paceline.core.arrays import I32, Index
from paceline.core.errors import StepError
from paceline.core.plan import Pairs, Plan, Rows, StepResult
from paceline.core.request import Request
from paceline.runner.cuda.capture import Memory
from paceline.runner.cuda.columns import settle
from paceline.runner.cuda.drafts import DraftedSteps, on_host
from paceline.runner.cuda.graphs import Capturable, Graphs
from paceline.runner.cuda.mixed import MixedGraphs, Rowwise
from paceline.runner.cuda.model import CudaModel
from paceline.runner.cuda.residents import Residents
from paceline.runner.cuda.sampling import choose
from paceline.runner.cuda.staging import Returns
from paceline.runner.cuda.state import CardState
from paceline.runner.kv_store import KVStore
from paceline.runner.result import Result
from paceline.runner.runner import quickest
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
    result: StepResult | None = None  # of a step that has ended when it is launched


@dataclass(frozen=True, slots=True, eq=False)
class Batching:
    """What holds for as long as plans have the same rows."""

    rows: Rows
    order: Index  # of all rows on the card
    wanted: Index  # those that sample, in that order
    is_decode: bool  # one position each, and every row samples
    is_plain: bool  # nobody asks for more than a temperature


class CudaRunner:
    """Runs plans in the order in which it gets them, and returns from `launch` before they end.

    The store has one block more than plans know of, for rows that fill up a batch.
    """

    def __init__(
        self,
        model: CudaModel,
        kv: KVStore,
        attention: Capturable,
        slots: int,
        max_model_len: int,
        most_positions: int,
    ) -> None:
        """Steps of more than so many positions, or of an attention without graphs for rows of
        any length, are launched kernel by kernel."""
        self._model, self._kv, self._attention = model, kv, attention
        state = self.state = CardState(slots, max_model_len, kv)
        memory = Memory()
        self.graphs = Graphs(model, kv, attention, state, memory)
        self.mixed = None
        if isinstance(attention, Rowwise):
            self.mixed = MixedGraphs(model, kv, attention, state, most_positions, memory)
        self._sampler = Sampler(model.config.vocab, max_model_len, kv.content.device)
        self._residents = Residents(slots, self._sampler)
        self._same: Batching | None = None
        self._controls: Controls | None = None
        self._drafted = DraftedSteps(model, kv, attention)
        self._returns = Returns(slots)
        self._host = torch.empty((0, *kv.content.shape[1:]), dtype=kv.dtype)
        self._flight: deque[Launched] = deque()

    def reserve_host(self, blocks: int) -> None:
        """Make room on the host for swapping."""
        shape = (blocks, *self._kv.content.shape[1:])
        self._host = torch.empty(shape, dtype=self._kv.dtype, pin_memory=True)

    @torch.inference_mode()
    def warm(self) -> None:
        """Capture the graphs of every size."""
        for _ in chain(self.mixed.capture() if self.mixed else (), self.graphs.capture(True)):
            pass

    @torch.inference_mode()
    def rehearse(self) -> None:
        """Run the largest step once, for whoever ran last."""
        if self.mixed is None:
            raise StepError("only an attention with graphs for rows of any length can rehearse")
        self.mixed.rehearse()
        torch.cuda.synchronize()

    def measure(self, blocks: int = 16) -> tuple[float, float]:
        """Positions computed and blocks copied to the host per second, once it is warm."""
        blocks = min(blocks, len(self._host), self._kv.blocks)
        pairs = tuple((block, block) for block in range(blocks))

        def copy() -> None:
            swap(self._kv, self._host, pairs, ())
            torch.cuda.synchronize()

        positions = self.mixed.most if self.mixed else 0
        return positions / quickest(self.rehearse), blocks / quickest(copy)

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
            self._same = self._controls = None
            found = self._drafted.run(plan, self.state, self._sampler, self._residents.requests)
            self._flight.append(Launched(plan, np.empty(0, np.intp), None, result=found))
            return
        if any(step.result is not None for step in self._flight):
            plan = replace(plan, start=self.state.stands(plan.rows.slot))  # below what was planned
        same = self._batching(plan)
        self._flight.append(self._decode(plan, same) if same.is_decode else self._mixed(plan, same))

    def wait(self) -> StepResult:
        step = self._flight.popleft()
        if step.result is not None:
            return step.result
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
        self._residents.apply(plan)
        self.state.apply(plan)
        if plan.admitted or plan.released:
            self._same = self._controls = None

    def _move(self, plan: Plan) -> None:
        if plan.copies:
            sources, targets = (torch.tensor(side) for side in zip(*plan.copies, strict=True))
            blocks = self._kv.content.view(torch.uint8)  # some types can be moved, and no more
            device = blocks.device
            blocks[targets.to(device)] = blocks[sources.to(device)]
        swap(self._kv, self._host, plan.swap_out, plan.swap_in)

    def _batching(self, plan: Plan) -> Batching:
        rows, same = plan.rows, self._same
        if same is None or same.rows is not rows:
            is_decode = bool(rows.samples.all()) and len(rows) == int(rows.count.sum())
            order = self._residents.order(plan)
            wanted = order[rows.samples[order]]
            is_plain = self._residents.are_plain(rows.slot[wanted])
            same = self._same = Batching(rows, order, wanted, is_decode, is_plain)
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
        size = self.mixed.size(plan) if self.mixed else None
        if self.mixed is None or size is None:
            return self._eager(plan, same)
        self.mixed.forward(plan, size, same.order, same.wanted)
        samples = len(same.wanted)
        if not samples:
            return Launched(plan, same.wanted, None)
        if same.is_plain:
            return Launched(plan, same.wanted, self._returns.fetch(self.mixed.sample(samples)))
        return self._sample(plan, same, *self.mixed.wanted(samples))

    def _eager(self, plan: Plan, same: Batching) -> Launched:
        """Kernel by kernel, rows as the plan has them."""
        wanted = np.flatnonzero(plan.rows.samples)
        same = replace(same, wanted=wanted)
        batch, cells, slot = self.state.batch(plan)
        prepared = self._attention.prepare(batch, self._kv)
        hidden = self._model.forward(batch, cells, self._kv, prepared)
        self.state.advance(slot, batch.context)
        if not len(wanted):
            return Launched(plan, wanted, None)
        logits = self._model.logits(hidden.index_select(0, batch.sample_at))
        context = batch.position.index_select(0, batch.sample_at) + 1
        own = self.state.slots(plan.rows.slot[wanted].astype(np.int32), len(wanted))
        if not same.is_plain:
            return self._sample(plan, same, logits, own, context)
        state, ids = self.state, torch.empty_like(own)
        choose(logits, state.temperature, state.key, own, context, ids)
        settle(state.tokens, state.position, own, context, ids)
        return Launched(plan, wanted, self._returns.fetch(ids))

    def _sample(
        self, plan: Plan, same: Batching, logits: Tensor, slot: Tensor, context: Tensor
    ) -> Launched:
        """Rows that ask for more than a temperature, all by the sampler."""
        rows, first = plan.rows, context.long()
        own = rows.slot[same.wanted].tolist()
        if self._controls is None:
            self._controls = self._sampler.controls(own)
        controls, scores = self._controls, logits.float()
        asked = [self._residents.requests[place] for place in own]
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


def swap(kv: KVStore, pinned: Tensor, out: Pairs, back: Pairs) -> None:
    """Copy blocks to the host, then others from it, one after the other in the order of steps."""
    for device, host in out:
        pinned[host].copy_(kv.content[device], non_blocking=True)
    for host, device in back:
        kv.content[device].copy_(pinned[host], non_blocking=True)


def told(step: Launched, ids: Tensor) -> StepResult:
    """The result of a step of which not every row sampled, or some want to know more."""
    result = Result(step.plan, step.wanted, ids, torch.ones(len(ids), dtype=torch.long))
    if step.controls is not None:
        result.tell(step.controls, (on_host(step.scores),))
        for row, request, raw in step.raw:
            result.tell_one(row, raw.cpu()[None], ids[row], request)
    return result.whole()
