"""Runs plans on the CPU: device state, forward, sampling, and every copy that a plan lists."""

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from time import perf_counter

import numpy as np
import torch
from torch import Tensor

from paceline.core.capabilities import Capabilities
from paceline.core.masks import MaskRows, TokenMasks
from paceline.core.plan import Plan, StepResult
from paceline.core.request import Request
from paceline.runner.adapters.host import HostAdapters
from paceline.runner.adapters.residents import ResidentAdapters
from paceline.runner.attention.backend import Attention
from paceline.runner.batch import Batch
from paceline.runner.block_bytes import BlockBytes
from paceline.runner.block_moves import BlockMoves
from paceline.runner.device_state import DeviceState
from paceline.runner.kv_store import KVStore
from paceline.runner.layers.layer_inputs import LayerInputs
from paceline.runner.models.model import Model
from paceline.runner.prompt_reports import PromptReports
from paceline.runner.proposer import (
    Drafter,
    DraftingFor,
    DraftInput,
    Drafts,
    check_drafts,
    check_shape,
)
from paceline.runner.resident_items import ResidentItems
from paceline.runner.result import ResultBuilder
from paceline.runner.row_controls import RowControls
from paceline.runner.sampler import Sampler, TokenScores
from paceline.runner.token_mask import apply_masks, without_forbidden


class TorchRunner:
    """Runs plans in the order in which it gets them; results come back in that order too.

    Within a step it copies blocks on the device, then to the host, then from it, encodes
    multimodal items, and computes after that.
    """

    def __init__(
        self,
        model: Model,
        kv: KVStore,
        attention: Attention,
        drafter: Drafter,
        slots: int,
        max_model_len: int,
        masks: TokenMasks | None = None,
    ) -> None:
        self._model, self._kv, self._attention = model, kv, attention
        device = kv.content.device
        groups = len(kv.groups)
        self._state = DeviceState(slots, max_model_len, kv.block_size, device, groups)
        self._sampler = Sampler(model.config.vocab, max_model_len, device)
        self._drafter, self._masks = drafter, masks
        drafter.attach(DraftingFor(model, self._state, kv.blocks, kv.block_size))
        self._moves = BlockMoves(kv)
        self._adapters: ResidentAdapters | None = None
        self._items: ResidentItems | None = None
        self._requests: dict[int, Request] = {}  # by slot
        self._reports = PromptReports()
        self._controls = RowControls(self._sampler)
        self._flight: deque[StepResult | Plan] = deque()  # the latest may be a plan that is not run

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            logprobs=True,
            prompt_logprobs=True,
            adapters=self._adapters is not None,
            items=self._items is not None,
            constraints=self._masks is not None,
            pooling=True,
        )

    def reserve_host(self, blocks: int) -> None:
        """Make room on the host for swapping."""
        self._moves.reserve(blocks)
        self._drafter.reserve_host(blocks)

    def block_bytes(self) -> BlockBytes:
        """The blocks as bytes, for other threads."""
        return BlockBytes(self._kv)

    @property
    def host_adapters(self) -> HostAdapters | None:
        """The adapters in host memory; None: no adapters are applied."""
        return None if self._adapters is None else self._adapters.host

    def use_adapters(self, adapters: ResidentAdapters) -> None:
        """Apply adapters from now on."""
        self._adapters = adapters

    def use_items(self, items: ResidentItems) -> None:
        """Compute prompts with multimodal items from now on."""
        self._items = items

    def launch(self, plan: Plan) -> None:
        """Run a step. A CPU has nothing to overlap with, so the step has ended on return, unless
        its masks depend on a step that was not waited for."""
        try:
            self._run_latest()
        finally:
            self._drafter.follow(plan)
            self._take_over(plan)
        if self._flight and self._masks is not None and self._masks.wants(plan):
            self._flight.append(plan)
        elif not plan.empty:
            self._flight.append(self._run(plan))

    def wait(self) -> StepResult:
        """Return the result of the oldest step that was not waited for."""
        if len(self._flight) == 1:
            self._run_latest()
        oldest = self._flight.popleft()
        assert isinstance(oldest, StepResult), "its masks depend on steps that were not waited for"
        return oldest

    def _run_latest(self) -> None:
        """Run the latest step, if that was put off. The steps before it are committed."""
        latest = self._flight[-1] if self._flight else None
        if isinstance(latest, Plan):
            self._flight.pop()
            self._flight.append(self._run(latest))

    def is_lost(self) -> bool:
        """A CPU is never lost."""
        return False

    def close(self) -> None:
        self._flight.clear()

    # -- changes that come with a plan --------------------------------------

    def _take_over(self, plan: Plan) -> None:
        for slot in plan.released:
            if self._requests.pop(slot, None) is not None:
                self._sampler.release(slot)
                self._reports.release(slot)
        for new in plan.admitted:
            self._sampler.admit(new.slot, new.request, new.tokens)  # may run out of memory
            self._requests[new.slot] = new.request
            self._reports.admit(new.slot, new.request)
        self._state.apply(plan)
        if self._adapters is not None:
            self._adapters.apply(plan)
        if self._items is not None:
            self._items.apply(plan)
        if plan.admitted or plan.released:
            self._controls.forget()

    # -- a step -------------------------------------------------------------

    @torch.inference_mode()
    def _run(self, plan: Plan) -> StepResult:
        self._moves.carry_out(plan)
        if not len(plan.rows):
            return StepResult.of(plan, {})
        if self._items is not None:
            self._items.encode(plan)
        slot = torch.from_numpy(plan.rows.slot.astype(np.int64))
        if plan.rows.drafts.any():
            plan, drafts = self._draft(plan, slot)
            return replace(self._compute(plan, slot, drafts), computed_drafts=plan.rows.drafts)
        return self._compute(plan, slot, None)

    def _compute(self, plan: Plan, slot: Tensor, drafts: Drafts | None) -> StepResult:
        rows = plan.rows
        count = torch.from_numpy(rows.count.astype(np.int64))
        batch = self._state.batch(plan, slot, count)
        if self._items is not None:
            batch = self._items.merged(batch, plan, slot)
        report = self._reports.of_step(plan, batch)
        wanted = batch.sample_at if report is None else None  # reports need any position
        inputs = self._inputs(batch)
        if self._adapters is not None:
            batch = replace(batch, adapters=self._adapters.of_step(rows))
        hidden = self._model.forward(batch, self._kv, self._attention, wanted, inputs)
        if rows.samples.any():
            logits = self._model.logits(hidden[batch.sample_at] if wanted is None else hidden)
            result = self._sample(plan, batch, logits, drafts)
        else:
            self._state.advance(slot, count)
            result = StepResult.of(plan, {})
        if self._drafter.observes:
            self._drafter.observe(batch, slot, None if inputs is None else inputs.rows)
        return result if report is None else report.added(result, hidden, self._model)

    def _inputs(self, batch: Batch) -> LayerInputs | None:
        """Room for what some layers read, if the drafter wants it."""
        if not (layers := self._drafter.layers):
            return None
        width = len(layers) * self._model.config.width
        return LayerInputs(layers, torch.empty(batch.positions, width, dtype=self._model.dtype))

    def _draft(self, plan: Plan, slot: Tensor) -> tuple[Plan, Drafts | None]:
        """Return the plan with the drafts that were proposed, which may be fewer than planned, and
        the drafts of the rows that sample; None if there are none.

        A place for which nothing was proposed is not computed, nor one behind a draft that a
        constraint does not allow.
        """
        rows = plan.rows
        width = rows.count - rows.drafts
        wanted = torch.from_numpy(rows.samples)
        number = torch.from_numpy(rows.drafts.astype(np.int64))[wanted]
        own = slot[wanted]
        known = self._state.position[own] + torch.from_numpy(width.astype(np.int64))[wanted]
        tokens = self._state.tokens[own, : int(known.max())]
        most = int(number.max())
        drafts = self._drafter.draft(DraftInput(own, tokens, known, number, most))
        check_shape(self._drafter, drafts, len(number), most)
        check_drafts(self._drafter, drafts.ids, number, self._model.config.vocab)
        drafts = replace(drafts, ids=self._allowed(plan, drafts.ids))
        self._state.append(own, known, drafts.ids)
        found = np.zeros_like(rows.drafts)
        found[rows.samples] = (drafts.ids >= 0).sum(1).numpy()
        rows = replace(rows, count=width + found, drafts=found)
        most = int(found.max())
        return replace(plan, rows=rows), drafts.up_to(most) if most else None

    def _allowed(self, plan: Plan, drafts: Tensor) -> Tensor:
        masks = self._masked(plan, np.flatnonzero(plan.rows.samples), drafts)
        return drafts if masks is None else without_forbidden(drafts, masks)

    def _masked(self, plan: Plan, wanted: np.ndarray, drafts: Tensor | None) -> MaskRows | None:
        if self._masks is None or not self._masks.wants(plan):
            return None
        places = None if drafts is None else drafts.int().numpy()
        return self._masks.fill(plan, wanted, places)

    def _sample(
        self, plan: Plan, batch: Batch, logits: Tensor, drafts: Drafts | None
    ) -> StepResult:
        rows = plan.rows
        wanted = np.flatnonzero(rows.samples)
        slot = torch.from_numpy(rows.slot[wanted].astype(np.int64))
        number = torch.from_numpy(rows.drafts[wanted].astype(np.int64))
        first = batch.context[torch.from_numpy(wanted)] - number  # where the sampled token goes
        controls = self._controls.of(rows, wanted)
        asked = [self._requests[place] for place in rows.slot[wanted].tolist()]
        quiet = [row for row, request in enumerate(asked) if request.silent]
        at = lines(number, 0 if drafts is None else drafts.ids.shape[1])
        masks = self._masked(plan, wanted, None if drafts is None else drafts.ids)
        if masks is not None:
            apply_masks(logits, masks, at.flatten()[torch.from_numpy(masks.line)])
        raw = logits[at[quiet]] if quiet else logits
        if drafts is None:
            sampled = self._sampler.sample(logits, controls, first)
            ids, taken, bad = sampled.ids[:, None], torch.ones_like(sampled.ids), sampled.bad
            scores: tuple[TokenScores | None, ...] = (sampled.scores,)
        else:
            given = drafts.ids, controls, first, at, drafts.probabilities
            found = self._sampler.verify(logits, *given)
            ids, taken, bad, scores = found.ids, found.count, found.bad, found.scores
        controls.observe(ids, first)
        self._advance(plan, slot, first, ids, taken)
        result = ResultBuilder(plan, wanted, ids, taken)
        result.fail(bad)
        result.add_logprobs(controls, scores)
        for row, own in zip(quiet, raw, strict=False):
            result.add_silent_logprobs(row, own, ids[row], asked[row])
        return result.build()

    def _advance(self, plan: Plan, slot: Tensor, first: Tensor, ids: Tensor, taken: Tensor) -> None:
        """Move rows that sampled to their last right token, and the others to their end."""
        rows, state = plan.rows, self._state
        if not rows.samples.all():
            everyone = torch.from_numpy(rows.slot.astype(np.int64))
            state.advance(everyone, torch.from_numpy(rows.count.astype(np.int64)))
        state.position[slot] = first + taken - 1
        state.append(slot, first, ids)

    # -- speed --------------------------------------------------------------

    def measure(self, blocks: int = 8) -> tuple[float, float]:
        """Measure positions computed and blocks copied to the host, per second."""
        kv, size, blocks = self._kv, self._kv.block_size, min(blocks, self._kv.blocks)
        positions = torch.arange(blocks * size)
        batch = Batch(
            tokens=torch.zeros_like(positions),
            position=positions,
            row_start=torch.tensor([0, len(positions)]),
            context=torch.tensor([len(positions)]),
            block_table=torch.arange(blocks).expand(len(kv.groups), 1, -1),
            write_cell=positions.expand(len(kv.groups), -1),
            sample_at=positions[-1:],
        )
        forward_s = quickest(lambda: self._model.forward(batch, kv, self._attention))
        copy_s = quickest(lambda: kv.read(range(blocks)).clone())
        return len(positions) / forward_s, blocks / copy_s


def lines(number: Tensor, most: int) -> Tensor:
    """Which line of logits each place of a row has, [rows, 1 + most], where row i has its own and
    one for each of its `number[i]` drafts. Places behind them have the last line of the row."""
    end = (number + 1).cumsum(0)
    first = (end - number - 1)[:, None]
    return torch.minimum(first + torch.arange(1 + most), end[:, None] - 1)


def quickest(work: Callable[[], object], times: int = 3) -> float:
    """Return the seconds of the quickest of several runs."""
    taken: list[float] = []
    for _ in range(times):
        begin = perf_counter()
        work()
        taken.append(perf_counter() - begin)
    return min(taken)
