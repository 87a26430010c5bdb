"""The runner on a CPU."""

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from time import perf_counter, process_time

import numpy as np
import torch
from torch import Tensor

from paceline.core.capabilities import Capabilities, StepCost
from paceline.core.masks import TokenMasks
from paceline.core.multimodal import NOTHING_EMBEDDED
from paceline.core.plan import Plan, StepResult
from paceline.runner.adapters.host import HostAdapters, ResidentAdapters
from paceline.runner.attention_backend import Attention
from paceline.runner.batch import Batch
from paceline.runner.device_state import DeviceState
from paceline.runner.encoder_store import ResidentImages
from paceline.runner.kv_store import BlockBytes, BlockMoves, KVStore
from paceline.runner.layers.norm import LayerInputs
from paceline.runner.models.model import Model
from paceline.runner.models.states.state_layout import StateLayout
from paceline.runner.parallel.tokens import token_source
from paceline.runner.prompt_reports import PromptReports
from paceline.runner.proposer import Drafter, DraftingFor, DraftInput, Drafts
from paceline.runner.sampling.sampler import Sampler
from paceline.runner.state_store import RowStates, StateStore, moved
from paceline.runner.step_tokens import ChosenTokens
from paceline.runner.tensors import from_numpy


class TorchRunner:
    """Runs plans and returns their results in the same order.

    A step copies blocks and states as its plan lists them, encodes images, and then computes its
    rows.
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
        self._drafter, self._masks = drafter, masks
        sampler = Sampler(model.config.vocab, max_model_len, device)
        self._tokens = token_source(model, drafter, sampler, masks)
        drafter.attach(DraftingFor(model, self._state, kv.blocks, kv.block_size))
        self._moves = BlockMoves(kv)
        layout = StateLayout.of(model.config, model.dtype.itemsize)
        self._states = None
        if layout is not None:
            self._states = StateStore(layout, slots, model.dtype, device, kv.block_bytes)
        self._adapters: ResidentAdapters | None = None
        self._images: ResidentImages | None = None
        self._reports = PromptReports()
        self._flight: deque[StepResult | Plan] = deque()  # the latest may be a pending plan

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            logprobs=True,
            prompt_logprobs=True,
            adapters=self._adapters is not None,
            images=self._images is not None,
            constraints=self._masks is not None,
            pooling=True,
            processors=True,
            generation=self._model.config.generates,
        )

    def reserve_host(self, blocks: int) -> None:
        """Allocate host memory for swapping."""
        self._moves.reserve(blocks)
        self._drafter.reserve_host(blocks)

    @property
    def kv_block_bytes(self) -> int:
        """Bytes of one block."""
        return self._kv.block_bytes

    @property
    def kv_memory(self) -> list[Tensor]:
        """What is kept of sequences: blocks, and states if layers have some."""
        states = [] if self._states is None else [self._states.content]
        return [self._kv.content, *states]

    def block_bytes(self) -> BlockBytes:
        """Access to the bytes of blocks, for other threads."""
        return BlockBytes(self._kv)

    @property
    def host_adapters(self) -> HostAdapters | None:
        """The adapters in host memory; None: adapters are not used."""
        return None if self._adapters is None else self._adapters.host

    def use_adapters(self, adapters: ResidentAdapters) -> None:
        """Enable adapters."""
        self._adapters = adapters

    def use_images(self, images: ResidentImages) -> None:
        """Enable prompts with images."""
        self._images = images

    def launch(self, plan: Plan) -> None:
        """Run a step. On a CPU it has ended on return, unless its masks depend on a step whose
        result was not waited for."""
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
        """Return the result of the oldest step in flight."""
        if len(self._flight) == 1:
            self._run_latest()
        oldest = self._flight.popleft()
        assert isinstance(oldest, StepResult), "its masks depend on steps that were not waited for"
        return oldest

    def _run_latest(self) -> None:
        """Run the latest step if it is pending. The steps before it are committed."""
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
        self._tokens.apply(plan)
        self._reports.apply(plan)
        self._state.apply(plan)
        if self._adapters is not None:
            self._adapters.apply(plan)
        if self._images is not None:
            self._images.apply(plan)

    # -- a step -------------------------------------------------------------

    @torch.inference_mode()
    def _run(self, plan: Plan) -> StepResult:
        with moved(plan, self._states, self._kv, self._moves):
            return self._run_rows(plan) if len(plan.rows) else StepResult.of(plan, {})

    def _run_rows(self, plan: Plan) -> StepResult:
        if self._images is not None:
            self._images.encode(plan)
        slot = from_numpy(plan.rows.slot.astype(np.int64))
        if plan.rows.drafts.any():
            plan, drafts = self._draft(plan, slot)
            compute = self._compute if self._states is None else self._compute_with_states
            return replace(compute(plan, slot, drafts), computed_drafts=plan.rows.drafts)
        return self._compute(plan, slot, None)

    def _compute_with_states(self, plan: Plan, slot: Tensor, drafts: Drafts | None) -> StepResult:
        """Compute a step, whose rejected drafts must leave no trace in states: rows that have some
        get their states back, and compute the accepted positions again."""
        assert self._states is not None
        rows, start = plan.rows, self._state.position[slot]
        drafted = from_numpy(rows.drafts > 0)
        before = self._states.read(slot[drafted])
        result = self._compute(plan, slot, drafts)
        count = self._state.position[slot] - start
        short = count < from_numpy(rows.count)
        self._states.write(slot[short], before[short[drafted]])
        again = short & (count > 0)  # a row that failed has no accepted position
        if bool(again.any()):
            self._advance_states(plan, again, start[again], count[again])
        return result

    def _advance_states(self, plan: Plan, chosen: Tensor, start: Tensor, count: Tensor) -> None:
        """Compute some rows from these positions on once more. Nothing is sampled."""
        some = plan.rows.only(chosen.numpy())
        none = np.zeros_like(some.drafts)
        rows = replace(some, count=count.numpy().astype(np.int32), drafts=none)
        plan = replace(plan, rows=rows, embedded=NOTHING_EMBEDDED)
        slot = from_numpy(rows.slot.astype(np.int64))
        self._state.position[slot] = start
        self._model.forward(self._batch(plan, slot), self._kv, self._attention, slot[:0])
        self._state.advance(slot, count)

    def _compute(self, plan: Plan, slot: Tensor, drafts: Drafts | None) -> StepResult:
        rows, batch = plan.rows, self._batch(plan, slot)
        report = self._reports.of_step(plan, batch)
        wanted = batch.sample_at if report is None else None  # reports may need any position
        inputs = self._inputs(batch)
        hidden = self._model.forward(batch, self._kv, self._attention, wanted, inputs)
        if rows.samples.any():
            logits = self._model.logits(hidden[batch.sample_at] if wanted is None else hidden)
            result = self._sample(plan, batch, logits, drafts)
        else:
            self._state.advance(slot, from_numpy(rows.count.astype(np.int64)))
            result = StepResult.of(plan, {})
        if self._drafter.observes:
            self._drafter.observe(batch, slot, None if inputs is None else inputs.rows)
        return result if report is None else self._tokens.reported(report, result, hidden)

    def _batch(self, plan: Plan, slot: Tensor) -> Batch:
        """The tensors of a step."""
        count = from_numpy(plan.rows.count.astype(np.int64))
        batch = self._with_states(self._state.batch(plan, slot, count), slot)
        if self._images is not None:
            batch = self._images.merged(batch, plan, slot)
        if self._adapters is not None:
            batch = replace(batch, adapters=self._adapters.of_step(plan.rows))
        return batch

    def _with_states(self, batch: Batch, slot: Tensor) -> Batch:
        """The same with the states of its rows, which have these slots."""
        if self._states is None:
            return batch
        return replace(batch, states=RowStates(self._states, slot))

    def _inputs(self, batch: Batch) -> LayerInputs | None:
        """A buffer for the inputs of layers that the drafter observes."""
        if not (layers := self._drafter.layers):
            return None
        width = len(layers) * self._model.config.width
        return LayerInputs(layers, torch.empty(batch.positions, width, dtype=self._model.dtype))

    def _draft(self, plan: Plan, slot: Tensor) -> tuple[Plan, Drafts | None]:
        """Return the plan reduced to the drafts that were proposed, and these drafts; None if there
        are none.

        Positions without a proposed draft, or after a draft that a constraint does not allow, are
        not computed.
        """
        rows = plan.rows
        width = rows.count - rows.drafts
        wanted = from_numpy(rows.samples)
        number = from_numpy(rows.drafts.astype(np.int64))[wanted]
        slots = slot[wanted]
        known = self._state.position[slots] + from_numpy(width.astype(np.int64))[wanted]
        tokens = self._state.tokens[slots, : int(known.max())]
        most = int(number.max())
        drafts = self._tokens.draft(plan, DraftInput(slots, tokens, known, number, most))
        self._state.append(slots, known, drafts.ids)
        found = np.zeros_like(rows.drafts)
        found[rows.samples] = (drafts.ids >= 0).sum(1).numpy()
        rows = replace(rows, count=width + found, drafts=found)
        most = int(found.max())
        return replace(plan, rows=rows), drafts.up_to(most) if most else None

    def _sample(
        self, plan: Plan, batch: Batch, logits: Tensor, drafts: Drafts | None
    ) -> StepResult:
        found = self._tokens.choose(plan, batch, logits, drafts)
        self._advance(plan, found)
        return found.result

    def _advance(self, plan: Plan, found: ChosenTokens) -> None:
        """Move rows that sampled to their last accepted token, and the others to their end."""
        rows, state = plan.rows, self._state
        if not rows.samples.all():
            everyone = from_numpy(rows.slot.astype(np.int64))
            state.advance(everyone, from_numpy(rows.count.astype(np.int64)))
        slot = from_numpy(rows.slot[rows.samples].astype(np.int64))
        state.position[slot] = found.first + found.taken - 1
        state.append(slot, found.first, found.ids)

    # -- speed --------------------------------------------------------------

    def measure(self, blocks: int = 8) -> tuple[float, float]:
        """Measure positions computed and blocks swapped per second."""
        kv, blocks = self._kv, min(blocks, self._kv.blocks)
        positions = blocks * kv.block_size
        forward_s = self._chunk_s(positions, positions)
        copy_s = quickest(lambda: kv.read(range(blocks)).clone())
        return positions / forward_s, blocks / copy_s

    def measure_cost(self, longest: int, positions: int = 32, distance: int = 992) -> StepCost:
        """Measure the cost of a position in prompt chunks that end within `longest` positions."""
        longest = min(longest, self._kv.blocks * self._kv.block_size)
        positions = min(positions, max(longest // 2, 1))
        near_s, distance = self._chunk_s(positions, positions), min(distance, longest - positions)
        far_s = self._chunk_s(positions, positions + distance) if distance else near_s
        return StepCost.measured(near_s, far_s, positions, max(distance, 1))

    def _chunk_s(self, positions: int, end: int) -> float:
        """Seconds of a step that computes a chunk of one sequence up to `end`."""
        kv = self._kv
        position = torch.arange(end - positions, end)
        batch = Batch(
            tokens=torch.zeros_like(position),
            position=position,
            row_start=torch.tensor([0, positions]),
            context=torch.tensor([end]),
            block_table=torch.arange(-(-end // kv.block_size)).expand(len(kv.groups), 1, -1),
            write_cell=position.expand(len(kv.groups), -1),
            sample_at=torch.tensor([positions - 1]),
        )
        batch = self._with_states(batch, torch.tensor([0]))
        return quickest(lambda: self._model.forward(batch, kv, self._attention))


def quickest(work: Callable[[], object], times: int = 3) -> float:
    """Return the seconds of the fastest of several runs. On a single core, time of other processes
    does not count."""
    taken: list[float] = []
    for _ in range(times):
        begin, begin_cpu = perf_counter(), process_time()
        work()
        taken += [perf_counter() - begin, process_time() - begin_cpu]
    return max(min(taken), 1e-9)
