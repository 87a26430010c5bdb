"""Carries out plans: device state, forward, sampling, and every copy that a plan lists."""

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from time import perf_counter

import numpy as np
import torch
from torch import Tensor

from paceline.core.capabilities import Capabilities
from paceline.core.plan import Pairs, Plan, Rows, StepResult
from paceline.core.request import Request
from paceline.runner.attention.backend import Attention
from paceline.runner.batch import Batch
from paceline.runner.device_state import DeviceState
from paceline.runner.kv_store import KVStore
from paceline.runner.lazy_memory import lazy_zeros
from paceline.runner.models.model import Model
from paceline.runner.prompt_scores import Span, prompt_scores, spans
from paceline.runner.proposer import Proposer, filled
from paceline.runner.result import Result
from paceline.runner.sampler import Sampler, Scores
from paceline.runner.sampling_controls import Controls


class Runner:
    """Runs plans in the order in which it gets them; results come back in that order too.

    Within a step it copies on the device, then to the host, then from it, and writes after
    that, as a plan asks.
    """

    capabilities = Capabilities(logprobs=True, prompt_logprobs=True)

    def __init__(
        self,
        model: Model,
        kv: KVStore,
        attention: Attention,
        proposer: Proposer,
        slots: int,
        max_model_len: int,
    ) -> None:
        self._model, self._kv, self._attention = model, kv, attention
        device = kv.content.device
        self._state = DeviceState(slots, max_model_len, kv.block_size, device)
        self._sampler = Sampler(model.config.vocab, max_model_len, device)
        self._proposer = proposer
        self._host = torch.empty((0, *kv.content.shape[1:]), dtype=kv.dtype)
        self._requests: dict[int, Request] = {}  # by slot
        self._asking: dict[int, Request] = {}  # those of them that ask for scores of their prompt
        self._rows: Rows | None = None  # those that the controls are for
        self._controls: Controls | None = None
        self._results: deque[StepResult] = deque()

    def reserve_host(self, blocks: int) -> None:
        """Make room on the host for swapping."""
        self._host = lazy_zeros((blocks, *self._kv.content.shape[1:]), self._kv.dtype)

    def launch(self, plan: Plan) -> None:
        """Begin a step. A CPU has nothing to overlap with, so it is done when this returns."""
        self._take_over(plan)
        if not plan.empty:
            self._results.append(self._run(plan))

    def wait(self) -> StepResult:
        """The result of the oldest step that was launched and not waited for."""
        return self._results.popleft()

    def is_lost(self) -> bool:
        """A CPU is never lost."""
        return False

    def close(self) -> None:
        self._results.clear()

    # -- what a plan tells --------------------------------------------------

    def _take_over(self, plan: Plan) -> None:
        for slot in plan.released:
            if self._requests.pop(slot, None) is not None:
                self._sampler.release(slot)
                self._asking.pop(slot, None)
        for new in plan.admitted:
            self._sampler.admit(new.slot, new.request, new.tokens)  # it may want too much memory
            self._requests[new.slot] = new.request
            if new.request.sampling.prompt_logprobs is not None:
                self._asking[new.slot] = new.request
        self._state.apply(plan)
        if plan.admitted or plan.released:
            self._rows = None

    def _move(self, plan: Plan) -> None:
        self._kv.copy(plan.copies)
        if plan.swap_out:
            device, host = ends(plan.swap_out)
            self._host[host] = self._kv.read(device).to(self._host.device)
        if plan.swap_in:
            host, device = ends(plan.swap_in)
            self._kv.write(device, self._host[host])

    # -- a step -------------------------------------------------------------

    @torch.inference_mode()
    def _run(self, plan: Plan) -> StepResult:
        self._move(plan)
        rows = plan.rows
        if not len(rows):
            return StepResult.of(plan, {})
        slot = torch.from_numpy(rows.slot.astype(np.int64))
        count = torch.from_numpy(rows.count.astype(np.int64))
        drafts = self._drafts(plan, slot, count)
        batch = self._state.batch(plan, slot, count)
        asked = self._asked(plan, batch)
        wanted = None if asked else batch.sample_at  # who asks may want any position
        hidden = self._model.forward(batch, self._kv, self._attention, wanted)
        prompt = prompt_scores(plan, asked, hidden, self._model) if asked else ()
        if rows.samples.any():
            logits = self._model.logits(hidden[batch.sample_at] if wanted is None else hidden)
            result = self._sample(plan, batch, logits, drafts)
        else:
            self._state.advance(slot, count)
            result = StepResult.of(plan, {})
        return replace(result, prompt=prompt) if prompt else result

    def _asked(self, plan: Plan, batch: Batch) -> list[Span]:
        """What this step can tell of prompts to those who ask."""
        if not self._asking:
            return []
        return spans(plan, batch.position[batch.row_start[:-1]].tolist(), self._asking)

    def _drafts(self, plan: Plan, slot: Tensor, count: Tensor) -> Tensor | None:
        """Drafts of the rows that sample, [samples, most drafts]; None if nobody drafts."""
        rows = plan.rows
        if not rows.drafts.any():
            return None
        wanted = torch.from_numpy(rows.samples)
        number = torch.from_numpy(rows.drafts.astype(np.int64))[wanted]
        known = self._state.position[slot][wanted] + count[wanted] - number
        tokens = self._state.tokens[slot[wanted], : int(known.max())]
        drafts = self._proposer.propose(tokens, known, number, int(number.max()))
        self._state.append(slot[wanted], known, filled(drafts, number))
        return drafts

    def _sample(
        self, plan: Plan, batch: Batch, logits: Tensor, drafts: Tensor | None
    ) -> StepResult:
        rows = plan.rows
        wanted = np.flatnonzero(rows.samples)
        slot = torch.from_numpy(rows.slot[wanted].astype(np.int64))
        width = 1 if drafts is None else 1 + drafts.shape[1]
        number = torch.from_numpy(rows.drafts[wanted].astype(np.int64))
        first = batch.context[torch.from_numpy(wanted)] - number  # where the sampled token goes
        controls = self._controls_for(rows, wanted)
        asked = [self._requests[place] for place in rows.slot[wanted].tolist()]
        quiet = [row for row, request in enumerate(asked) if request.silent]
        raw = logits.view(len(wanted), width, -1)[quiet].clone() if quiet else logits
        if drafts is None:
            sampled = self._sampler.sample(logits, controls, first)
            ids, taken, bad = sampled.ids[:, None], torch.ones_like(sampled.ids), sampled.bad
            scores: tuple[Scores | None, ...] = (sampled.scores,)
        else:
            found = self._sampler.verify(
                logits.view(len(wanted), width, -1), drafts, controls, first
            )
            ids, taken, bad, scores = found.ids, found.count, found.bad, found.scores
        controls.observe(ids, first)
        self._advance(plan, slot, first, ids, taken)
        result = Result(plan, wanted, ids, taken)
        result.fail(bad)
        result.tell(controls, scores)
        for row, own in zip(quiet, raw, strict=False):
            result.tell_one(row, own, ids[row], asked[row])
        return result.whole()

    def _controls_for(self, rows: Rows, wanted: np.ndarray) -> Controls:
        if self._rows is not rows or self._controls is None:
            self._controls = self._sampler.controls(rows.slot[wanted].tolist())
            self._rows = rows
        return self._controls

    def _advance(self, plan: Plan, slot: Tensor, first: Tensor, ids: Tensor, taken: Tensor) -> None:
        """Rows that sampled stand where their last right token is; the others, at their end."""
        rows, state = plan.rows, self._state
        if not rows.samples.all():
            everyone = torch.from_numpy(rows.slot.astype(np.int64))
            state.advance(everyone, torch.from_numpy(rows.count.astype(np.int64)))
        state.position[slot] = first + taken - 1
        state.append(slot, first, ids)

    # -- speed --------------------------------------------------------------

    def measure(self, blocks: int = 8) -> tuple[float, float]:
        """Positions computed and blocks copied to the host per second, once it is warm."""
        kv, size, blocks = self._kv, self._kv.block_size, min(blocks, self._kv.blocks)
        positions = torch.arange(blocks * size)
        batch = Batch(
            tokens=torch.zeros_like(positions),
            position=positions,
            row_start=torch.tensor([0, len(positions)]),
            context=torch.tensor([len(positions)]),
            block_table=torch.arange(blocks)[None],
            write_cell=positions,
            sample_at=positions[-1:],
        )
        forward_s = quickest(lambda: self._model.forward(batch, kv, self._attention))
        copy_s = quickest(lambda: kv.read(range(blocks)).clone())
        return len(positions) / forward_s, blocks / copy_s


def ends(pairs: Pairs) -> tuple[list[int], list[int]]:
    """Sources and targets of copies."""
    return [source for source, _ in pairs], [target for _, target in pairs]


def quickest(work: Callable[[], object], times: int = 3) -> float:
    """Seconds that some work takes when nothing gets in its way."""
    taken: list[float] = []
    for _ in range(times):
        begin = perf_counter()
        work()
        taken.append(perf_counter() - begin)
    return min(taken)
