"""Carries out plans on a GPU: steps are launched ahead, and results are read by `wait`."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from paceline.core.arrays import I32, Index
from paceline.core.capabilities import Capabilities
from paceline.core.errors import StepError
from paceline.core.masks import TokenMasks
from paceline.core.plan import Plan, Rows, StepResult
from paceline.runner.adapters.host import HostAdapters
from paceline.runner.attention_backend import Attention
from paceline.runner.batch import Batch
from paceline.runner.cuda.coordinates import LogitMasks
from paceline.runner.cuda.drafting.drafts import DraftedSteps, Verification
from paceline.runner.cuda.flight import EagerSteps, LaunchedStep, Silent, UnsampledStep
from paceline.runner.cuda.graphs.capture import GraphMemory, capture_all
from paceline.runner.cuda.graphs.decode import DecodeGraphs
from paceline.runner.cuda.graphs.drafts import DraftGraphs
from paceline.runner.cuda.graphs.mixed import Extent, MixedGraphs
from paceline.runner.cuda.model import CudaModel
from paceline.runner.cuda.prompt_scores import PromptScorer
from paceline.runner.cuda.residents import BlockCopies, CudaImages, Residents
from paceline.runner.cuda.staging import Readback
from paceline.runner.cuda.state import CudaState
from paceline.runner.kv_store import BlockBytes, KVStore
from paceline.runner.proposer import Drafter, DraftingFor
from paceline.runner.runner import quickest
from paceline.runner.sampling.controls import Controls
from paceline.runner.sampling.sampler import Sampler
from paceline.runner.state_store import moved


@dataclass(frozen=True, slots=True, eq=False)
class RowLayout:
    """Order and sampling of rows, valid while consecutive plans share them."""

    rows: Rows
    order: Index  # of all rows on the GPU
    wanted: Index  # those that sample, in that order
    is_decode: bool  # one position each, and every row samples
    is_plain: bool  # every row samples by temperature alone
    is_adapted: bool  # some rows have adapters


@dataclass(frozen=True, slots=True)
class RunnerSizes:
    """Capacity of a runner, and whether it captures CUDA graphs."""

    slots: int
    max_model_len: int
    positions: int  # of a captured step, at most
    enforce_eager: bool = False  # capture nothing, and launch every step kernel by kernel


def unreported(_done: int, _total: int) -> None:
    """Report no progress."""


class CudaRunner:
    """Runs plans in order. `launch` returns before the step has ended.

    While a step with drafts is in flight, rows are moving: where they begin is known on the GPU
    alone, and plans have an upper bound. The store has one block more than plans know of, for
    rows that fill up a batch.
    """

    def __init__(
        self,
        model: CudaModel,
        kv: KVStore,
        attention: Attention,
        drafter: Drafter,
        sizes: RunnerSizes,
        masks: TokenMasks | None = None,
    ) -> None:
        """Steps that fit into no graph are launched kernel by kernel."""
        slots, max_model_len = sizes.slots, sizes.max_model_len
        images = model.images
        square = images.square if images is not None and images.has_axes else 0
        given = model.adapters, square, model.group
        state = self.state = CudaState(slots, max_model_len, kv, *given)
        drafts = drafter.config.num_speculative_tokens
        state.keep_states(model.config, model.dtype, kv.block_bytes, drafts)
        # The last block of the store is for padding, and so is the last slot.
        drafter.attach(DraftingFor(model, state, kv.blocks, kv.block_size))
        self._sampler = Sampler(model.config.vocab, max_model_len, kv.content.device)
        self._residents = Residents(slots, self._sampler, model.is_invariant)
        model, attention = drafter.accompany(model, attention)
        self._kv, self._attention = kv, attention
        memory = None if sizes.enforce_eager else GraphMemory()
        sizes_of_masks = slots * (1 + drafts), model.config.vocab, kv.content.device
        mask_memory = None if masks is None else LogitMasks(masks, *sizes_of_masks)
        self.graphs = DecodeGraphs(model, kv, attention, state, memory, mask_memory)
        self.mixed = drafted = None
        if attention.support.mixed_graphs:
            extent = Extent.of_prompts(sizes.positions, slots)
            self.mixed = MixedGraphs(model, kv, attention, state, extent, memory)
            extent = Extent.of_drafts(sizes.positions)
            lines = MixedGraphs(model, kv, attention, state, extent, memory)
            drafted = lines, DraftGraphs(model, state, lines.hidden, drafter, memory)
        self._same: RowLayout | None = None
        self._controls: Controls | None = None
        prompts = PromptScorer(model, self._residents, slots, kv.content.device)
        self._returns = Readback(slots)
        asked = self._residents, prompts
        self._eager_steps = EagerSteps(model, kv, attention, state, *asked)
        choice = Verification(state, self._sampler, self._residents, self._returns)
        self._drafted = DraftedSteps(model, state, drafted, self._eager_steps, drafter, choice)
        self._moves = BlockCopies(kv, 0)
        self._flight: deque[LaunchedStep | UnsampledStep] = deque()

    @property
    def host_adapters(self) -> HostAdapters | None:
        """The adapters in host memory; None: no adapters are applied."""
        return None if self.state.adapters is None else self.state.adapters.host

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            logprobs=True,
            prompt_logprobs=True,
            adapters=self.state.adapters is not None,
            images=self._residents.images is not None,
            constraints=self.graphs.masks is not None,
            pooling=True,
            generation=self._eager_steps.model.config.generates,
            step_sizes=self.mixed.lengths if self.mixed else (),
        )

    def use_images(self, images: CudaImages) -> None:
        """Compute prompts with images from now on."""
        self._residents.images = images

    def reserve_host(self, blocks: int) -> None:
        """Allocate host memory for swapping."""
        torch.cuda.synchronize()  # copies in flight use the old memory
        self._moves = BlockCopies(self._kv, blocks)
        self._drafted.drafter.reserve_host(blocks)

    @property
    def kv_block_bytes(self) -> int:
        """Bytes of one block."""
        return self._kv.block_bytes

    def block_bytes(self) -> BlockBytes:
        """The blocks as bytes, for other threads."""
        return BlockBytes(self._kv)

    @torch.inference_mode()
    def warm(self, drafts: bool = False, report: Callable[[int, int], None] = unreported) -> None:
        """Capture the graphs of every size, with sampling and without, and those for drafts: a
        capture while requests wait would hold them up, and take memory that was not set aside.
        `report` gets the number of graphs captured so far, and of all."""
        mixed = self.mixed.captures() if self.mixed else []
        drafted = self._drafted.captures() if drafts else []
        capture_all([*mixed, *drafted, *self.graphs.captures()], report)

    @torch.inference_mode()
    def rehearse(self, kinds: Sequence[bool] = (False,)) -> None:
        """Run the largest step once without requests, with adapters or without."""
        if self.mixed is None:
            raise StepError(
                "this attention backend has no graphs for mixed steps, so the "
                "largest step cannot be run"
            )
        for is_adapted in kinds:
            self.mixed.rehearse(is_adapted)
        torch.cuda.synchronize()

    def positions_per_s(self) -> float:
        """Positions per second of the largest step without adapters."""
        self.rehearse()  # compiles missing kernels
        return self.mixed.most / quickest(self.rehearse) if self.mixed else 0.0

    def blocks_per_s(self, blocks: int = 16) -> float:
        """Blocks copied to the host or back per second."""
        blocks = min(blocks, len(self._moves.host), self._kv.blocks)
        pairs = tuple((block, block) for block in range(blocks))

        def there_and_back() -> None:
            self._moves.out(pairs)
            self._moves.back(pairs)
            torch.cuda.synchronize()

        return 2 * blocks / quickest(there_and_back)

    @torch.inference_mode()
    def launch(self, plan: Plan) -> None:
        try:
            self._sample_latest()
        finally:
            self._drafted.drafter.follow(plan)
            self._take_over(plan)
        if plan.empty:
            return
        with moved(plan, self.state.states, self._kv, self._moves):
            self._flight.append(self._launched(plan))

    def _launched(self, plan: Plan) -> LaunchedStep | UnsampledStep:
        if not len(plan.rows):
            return LaunchedStep(plan, np.empty(0, np.intp), None)
        is_moving = any(step.is_drafted for step in self._flight)
        if is_moving and self._attention.support.plans_on_host:
            plan = replace(plan, start=self.state.stands(plan.rows.slot))
            is_moving = False
        with self._residents.encoded(plan):
            if not plan.rows.drafts.any():
                return self._run(plan, self._batching(plan), is_moving)
            self._same = self._controls = None
            order = self._residents.order(plan)
            return self._drafted.launch(plan, order, is_moving, self._of(plan))

    @torch.inference_mode()
    def wait(self) -> StepResult:
        if len(self._flight) == 1:
            self._sample_latest()
        step = self._flight.popleft()
        assert isinstance(step, LaunchedStep), "its masks depend on steps that were not waited for"
        if step.ticket is None:
            result = StepResult.of(step.plan, {})
        else:
            result = step.result(self._returns.read(step.ticket))
        return result if step.prompt is None else step.prompt.added(result)

    def _sample_latest(self) -> None:
        """Sample in the latest step, if that was put off. The steps before it are committed."""
        latest = self._flight[-1] if self._flight else None
        if isinstance(latest, UnsampledStep):
            self._flight.pop()
            self._flight.append(latest.sample())

    def _of(self, plan: Plan) -> LogitMasks | None:
        """The masks, if a row of this plan has one."""
        masks = self.graphs.masks
        return masks if masks is not None and masks.wants(plan) else None

    def is_lost(self) -> bool:
        """Whether the GPU is unusable for this process, as after an illegal memory access."""
        try:
            torch.cuda.synchronize()
        except RuntimeError:
            return True
        return False

    def close(self) -> None:
        self._flight.clear()
        self.is_lost()  # waits for everything; errors no longer matter

    # -- changes that come with a plan --------------------------------------

    def _take_over(self, plan: Plan) -> None:
        self._residents.apply(plan)
        self.state.apply(plan)
        if plan.admitted or plan.released:
            self._same = self._controls = None
            self._drafted.forget()

    def _batching(self, plan: Plan) -> RowLayout:
        rows, same = plan.rows, self._same
        if same is None or same.rows is not rows:
            is_decode = bool(rows.samples.all()) and len(rows) == int(rows.count.sum())
            order = self._residents.order(plan)
            wanted = order[rows.samples[order]]
            is_plain = self._residents.are_plain(rows.slot[wanted])
            is_adapted = self.state.is_adapted(rows.slot)
            same = self._same = RowLayout(rows, order, wanted, is_decode, is_plain, is_adapted)
            self._controls = None
            if is_decode:
                size = self.graphs.size(len(rows))
                self.graphs.slot[:size] = self.state.slots(rows.slot[order].astype(np.int32), size)
        return same

    # -- a step -------------------------------------------------------------

    def _run(self, plan: Plan, same: RowLayout, is_moving: bool) -> LaunchedStep | UnsampledStep:
        if self._eager_steps.wants(plan):
            return self._eager(plan, same, is_moving)
        # A new row may read what others write in this step, which a decode does not allow.
        if same.is_decode and not plan.admitted:
            return self._decode(plan, same)
        return self._mixed(plan, same, is_moving)

    def _decode(self, plan: Plan, same: RowLayout) -> LaunchedStep | UnsampledStep:
        """The graph goes by the positions on the GPU."""
        masks = self._of(plan)
        rows = len(plan.rows)
        size = self.graphs.size(rows)
        contexts: I32 = np.ones(size, np.int32)
        contexts[:rows] += plan.start[same.wanted]
        samples = same.is_plain and masks is None
        self.graphs.replay(size, contexts, samples, same.is_adapted)
        sample = partial(self._sample_decoded, plan, same, size, masks)
        return sample() if masks is None else UnsampledStep(sample)

    def _sample_decoded(
        self, plan: Plan, same: RowLayout, size: int, masks: LogitMasks | None
    ) -> LaunchedStep:
        rows = len(plan.rows)
        logits = self.graphs.logits[:rows]
        if masks is not None:
            masks.load(plan, same.wanted)
            if same.is_plain:
                self.graphs.sample(size)
            else:
                masks.apply(logits)
        if same.is_plain:
            return LaunchedStep(plan, same.wanted, self._returns.fetch(self.graphs.ids[:rows]))
        slot, context = self.graphs.slot[:rows], self.graphs.context[:rows]
        return self._sample(plan, same, logits, slot, context)

    def _mixed(self, plan: Plan, same: RowLayout, is_moving: bool) -> LaunchedStep | UnsampledStep:
        size = self.mixed.size(plan) if self.mixed else None
        if self.mixed is None or size is None:
            return self._eager(plan, same, is_moving)
        self.mixed.forward(plan, size, same.order, same.wanted, is_moving)
        if not len(same.wanted):
            return LaunchedStep(plan, same.wanted, None)
        masks = self._of(plan)
        sample = partial(self._sample_mixed, plan, same, self.mixed, masks)
        return sample() if masks is None else UnsampledStep(sample)

    def _sample_mixed(
        self, plan: Plan, same: RowLayout, mixed: MixedGraphs, masks: LogitMasks | None
    ) -> LaunchedStep:
        samples = len(same.wanted)
        if masks is not None:
            masks.load(plan, same.wanted)
        if same.is_plain:
            ids = mixed.sample_masked(samples, masks) if masks else mixed.sample(samples)
            return LaunchedStep(plan, same.wanted, self._returns.fetch(ids))
        logits, slot, context = mixed.wanted(samples)
        if masks is not None:
            masks.apply(logits)
        return self._sample(plan, same, logits, slot, context)

    def _eager(self, plan: Plan, same: RowLayout, is_moving: bool) -> LaunchedStep | UnsampledStep:
        self._same = self._controls = None  # which are for rows in another order
        hidden, batch, prompt = self._eager_steps.hidden(plan, is_moving)
        same = replace(same, wanted=np.flatnonzero(plan.rows.samples))
        if not len(same.wanted):
            return LaunchedStep(plan, same.wanted, None, prompt=prompt)
        masks = self._of(plan)

        def sample() -> LaunchedStep:
            return replace(self._sample_eager(plan, same, batch, hidden, masks), prompt=prompt)

        return sample() if masks is None else UnsampledStep(sample)

    def _sample_eager(
        self, plan: Plan, same: RowLayout, batch: Batch, hidden: Tensor, masks: LogitMasks | None
    ) -> LaunchedStep:
        """Sample from the hidden states of rows that sample."""
        wanted = same.wanted
        logits = self._eager_steps.logits(hidden)
        if masks is not None:
            masks.load(plan, wanted)
            masks.apply(logits)
        context = batch.position.index_select(0, batch.sample_at) + 1
        slot = self.state.slots(plan.rows.slot[wanted].astype(np.int32), len(wanted))
        if not same.is_plain:
            return self._sample(plan, same, logits, slot, context)
        ids = torch.empty_like(slot)
        self.state.choose(logits, slot, context, ids)
        return LaunchedStep(plan, wanted, self._returns.fetch(ids))

    def _sample(
        self, plan: Plan, same: RowLayout, logits: Tensor, slot: Tensor, context: Tensor
    ) -> LaunchedStep:
        """Sample with the sampler, if any row has more settings than a temperature."""
        if not self.state.samples:
            self.state.settle(slot, context, ids := torch.empty_like(slot))
            return LaunchedStep(plan, same.wanted, self._returns.fetch(ids))
        rows, first = plan.rows, context.long()
        slots = rows.slot[same.wanted].tolist()
        if self._controls is None:
            self._controls = self._sampler.controls(slots)
        controls, scores = self._controls, logits.float()
        asked = [self._residents.requests[one] for one in slots]
        silent = tuple(
            Silent(row, request, scores[row : row + 1].clone())
            for row, request in enumerate(asked)
            if request.silent
        )
        sampled = self._sampler.sample(scores, controls, first)
        controls.observe(sampled.ids, first)
        ids = sampled.ids.masked_fill(sampled.bad, -1).int()
        ids = self._residents.alike(slots, ids, lambda: self.state.drawn(logits, slot, context))
        self.state.settle(slot, context, ids)
        ticket = self._returns.fetch(ids)
        return LaunchedStep(plan, same.wanted, ticket, controls, (sampled.scores,), silent)
