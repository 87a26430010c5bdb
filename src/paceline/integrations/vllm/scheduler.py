"""The scheduler class for vLLM's `--scheduler-cls`."""

# pyright: reportMissingModuleSource=false

import time
from collections import deque
from collections.abc import Iterable
from typing import Any, ClassVar

from vllm import envs
from vllm.logger import init_logger
from vllm.v1.core.sched.interface import SchedulerInterface
from vllm.v1.core.sched.output import (
    CachedRequestData,
    GrammarOutput,
    NewRequestData,
    SchedulerOutput,
)
from vllm.v1.engine import EngineCoreEventType, EngineCoreOutputs
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.metrics.stats import SchedulerStats
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from paceline.core.errors import RequestError
from paceline.integrations.vllm.outputs import EngineStats, OutputWriter
from paceline.integrations.vllm.settings import (
    EXPLAIN,
    EngineLimits,
    our_request,
    refuse,
    scheduler_config,
)
from paceline.integrations.vllm.worker_steps import WorkerStep, WorkerSteps, Yielded

logger = init_logger("vllm.paceline")  # vLLM sets up loggers below its own name

COMPILING = "grammar"  # what a request is parked for until its grammar is compiled
STATUS = {
    "WAITING": RequestStatus.WAITING,
    "WAITING_FOR_GRAMMAR": RequestStatus.WAITING_FOR_FSM,
    "RUNNING": RequestStatus.RUNNING,
    "PREEMPTED": RequestStatus.PREEMPTED,
}


class PacelineScheduler(SchedulerInterface):
    """Our scheduler, as vLLM's engine core calls it.

    `_steps` decides. Everything else here keeps vLLM's objects in line with it: `_requests` has the
    open ones, `_grammatical` those among them that follow a grammar, `_compiling` those that wait
    for it, and `_flight` the steps whose results have not come.
    """

    connector: ClassVar[None] = None  # the engine core asks for it
    ec_connector: ClassVar[None] = None

    def __init__(
        self,
        vllm_config: Any,
        kv_cache_config: Any,
        structured_output_manager: Any,
        block_size: int,
        mm_registry: Any = None,
        include_finished_set: bool = False,
        log_stats: bool = False,
    ) -> None:
        refuse(features_in_use(vllm_config, kv_cache_config))
        chosen = settings_of_ours(vllm_config)
        self.vllm_config = vllm_config
        self.log_stats = log_stats
        self._grammars = structured_output_manager
        self._explain_over_s = float(chosen.pop(EXPLAIN, 0.0))
        limits = engine_limits(vllm_config, kv_cache_config, block_size)
        self._steps = WorkerSteps(scheduler_config(limits, chosen))
        self._writer = OutputWriter(log_stats, include_finished_set)
        self._stats = EngineStats(self._steps, limits.num_speculative_tokens)
        self._requests: dict[str, Request] = {}
        self._compiling: dict[str, Request] = {}
        self._grammatical: set[str] = set()
        self._flight: deque[tuple[SchedulerOutput, WorkerStep]] = deque()
        # Arrivals are on the wall clock. Ours starts there and never jumps.
        self._offset_s = time.time() - time.monotonic()
        logger.info("Requests are scheduled by paceline: %s", limits)

    def _now(self) -> float:
        return time.monotonic() + self._offset_s

    # -- requests -----------------------------------------------------------

    def add_request(self, request: Request) -> None:
        now = self._now()
        request.get_hash_new_full_blocks = None  # our blocks have keys of their own
        is_compiling = request.status == RequestStatus.WAITING_FOR_FSM
        try:
            ours = our_request(request, arrival=min(request.arrival_time, now))
            self._steps.scheduler.submit(ours, now, parked=COMPILING if is_compiling else "")
        except RequestError as error:
            self._writer.refuse(request, str(error))
            self._steps.forget(request.request_id)  # so that the engine takes a step
            return
        self._requests[request.request_id] = request
        if is_compiling:
            self._compiling[request.request_id] = request
            self._grammatical.add(request.request_id)
        self._writer.opened(request)

    def finish_requests(
        self, request_ids: str | Iterable[str], finished_status: RequestStatus
    ) -> None:
        now = self._now()
        for request_id in [request_ids] if isinstance(request_ids, str) else set(request_ids):
            request = self._requests.get(request_id)
            if request is not None:
                self._catch_up(request)
                self._steps.abort(request_id, now)
                request.status = finished_status
                self._close(request)

    def _close(self, request: Request) -> None:
        """Forget a request that has ended."""
        del self._requests[request.request_id]
        self._compiling.pop(request.request_id, None)
        self._grammatical.discard(request.request_id)
        self._writer.closed(request)
        if self._explain_over_s and self._now() - request.arrival_time > self._explain_over_s:
            logger.info("%s", self.explain(request.request_id))

    def _catch_up(self, request: Request) -> None:
        """Append to a request the tokens that it has got since the last time.

        Our scheduler has all tokens. Few readers of vLLM's request want them in every step.
        """
        known = self._steps.scheduler.view.known_tokens(request.request_id)
        request.append_output_token_ids(known[request.num_tokens :].tolist())

    def _wake_compiled(self, now: float) -> None:
        """Let requests run whose grammar is ready."""
        for request_id, request in list(self._compiling.items()):
            if _grammar(request) is not None:
                del self._compiling[request_id]
                request.status = RequestStatus.WAITING
                self._steps.scheduler.wake(request_id, now)

    # -- steps --------------------------------------------------------------

    def schedule(self) -> SchedulerOutput:
        now = self._now()
        if self._compiling:
            self._wake_compiled(now)
        step = self._steps.plan(now)
        if step.plan.preempted or step.plan.admitted:
            self._note_moves(step)
            self._stats.admitted(step)
        output = self._message(step)
        self._flight.append((output, step))
        return output

    def _note_moves(self, step: WorkerStep) -> None:
        """Keep the requests in line that were preempted or admitted."""
        for request_id in step.plan.preempted:
            request = self._requests.get(request_id)
            if request is not None:
                request.status = RequestStatus.PREEMPTED
                request.num_preemptions += 1
                self._writer.note(request, EngineCoreEventType.PREEMPTED)
        for one in step.plan.admitted:
            request = self._requests[one.request.id]
            request.status = RequestStatus.RUNNING
            request.num_computed_tokens = one.computed
            if request.num_cached_tokens < 0:
                request.num_cached_tokens = one.computed
            self._writer.note(request, EngineCoreEventType.SCHEDULED)

    def _message(self, step: WorkerStep) -> SchedulerOutput:
        """The step for vLLM's workers."""
        requests, later = self._requests, step.later
        for name in later.absent:
            self._catch_up(requests[name])
        new = [NewRequestData.from_request(requests[one.id], one.blocks) for one in step.new]
        cached = CachedRequestData(
            req_ids=later.ids,
            resumed_req_ids=later.resumed,
            new_token_ids=[],
            all_token_ids={name: requests[name].all_token_ids.copy() for name in later.absent},
            new_block_ids=later.blocks,
            num_computed_tokens=later.computed,
            num_output_tokens=later.outputs,
        )
        for name in step.drafts:
            requests[name].spec_token_ids = []
        return SchedulerOutput(
            scheduled_new_reqs=new,
            scheduled_cached_reqs=cached,
            num_scheduled_tokens=step.tokens,
            total_num_scheduled_tokens=sum(step.tokens.values()),
            scheduled_spec_decode_tokens=step.drafts,
            scheduled_encoder_inputs={},
            num_common_prefix_blocks=[0],
            finished_req_ids=step.finished,
            free_encoder_mm_hashes=[],
            preempted_req_ids=set(step.plan.preempted),
            pending_structured_output_tokens=self._awaits_grammar(step),
        )

    def _awaits_grammar(self, step: WorkerStep) -> bool:
        """Does a mask of this step depend on a token that a step in flight samples?"""
        if not self._grammatical:
            return False
        return any(
            name in self._grammatical and outputs > self._requests[name].num_output_tokens
            for name, outputs in zip(step.later.ids, step.later.outputs, strict=True)
        )

    def get_grammar_bitmask(self, scheduler_output: SchedulerOutput) -> GrammarOutput | None:
        if not self._grammatical:
            return None
        rows = scheduler_output.num_scheduled_tokens
        masked = [name for name in rows if name in self._grammatical]
        if not masked:
            return None
        drafts = scheduler_output.scheduled_spec_decode_tokens
        mask = self._grammars.grammar_bitmask(self._requests, masked, drafts)
        return GrammarOutput(masked, mask)

    def update_draft_token_ids(self, draft_token_ids: DraftTokenIds) -> None:
        pairs = zip(draft_token_ids.req_ids, draft_token_ids.draft_token_ids, strict=True)
        for request_id, drafts in pairs:
            request = self._requests.get(request_id)
            if request is None:
                continue
            if self._grammars.should_advance(request):
                request.spec_token_ids = _grammar(request).validate_tokens(drafts)
            else:
                request.spec_token_ids = drafts
            self._steps.propose(request_id, request.spec_token_ids)

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        step = self._oldest(scheduler_output)
        found = model_runner_output
        indexes = found.req_id_to_index
        yielded = self._steps.commit(step, found.sampled_token_ids, indexes, self._now())
        written = self._writer.write(yielded, found, self._requests)
        if self._grammatical:
            self._advance_grammars(yielded)
        for end, tokens in zip(yielded.ended, yielded.last, strict=True):
            if request := self._requests.get(end.request_id):
                request.append_output_token_ids(tokens[request.num_tokens :])
                self._close(request)
        self._stats.verified(yielded)
        stats = self._stats.report(found.cudagraph_stats) if self.log_stats else None
        return self._writer.deliver(written, stats)

    def _oldest(self, output: SchedulerOutput) -> WorkerStep:
        """The step of a message. Empty ones before it have no results."""
        while True:
            message, step = self._flight.popleft()
            if message is output:
                return step
            assert step.plan.empty, "results come in the order of the steps"

    def _advance_grammars(self, yielded: Yielded) -> None:
        for request_id, new in zip(yielded.ids, yielded.tokens, strict=True):
            if request_id not in self._grammatical:
                continue
            request = self._requests[request_id]
            request.append_output_token_ids(new)
            # Reasoning parsers look at the tokens from here on.
            request.num_computed_tokens = request.num_tokens - len(new)
            if self._grammars.should_advance(request):
                _grammar(request).accept_tokens(request_id, new)

    # -- operation ----------------------------------------------------------

    def reset_prefix_cache(
        self, reset_running_requests: bool = False, reset_connector: bool = False
    ) -> bool:
        if reset_connector:
            logger.warning("reset_connector: there is no KV connector")
        done = self._steps.scheduler.reset_prefix_cache(reset_running_requests, self._now())
        if done:
            self._stats.cache_was_reset()
        return done and not reset_connector

    def get_num_unfinished_requests(self) -> int:
        return len(self._requests)

    def has_finished_requests(self) -> bool:
        return bool(self._steps.finished)

    def get_request_counts(self) -> tuple[int, int]:
        return self._steps.running, self._steps.waiting

    def make_stats(self) -> SchedulerStats | None:
        return self._stats.report() if self.log_stats else None

    def shutdown(self) -> None:
        self._steps.scheduler.close()

    # -- asking -------------------------------------------------------------

    def explain(self, request_id: str) -> str:
        """Describe what a request waited for and what happened to it, in sentences."""
        return self._steps.scheduler.explain(request_id)

    def why(self) -> dict[str, str]:
        """The reason for each request that got nothing in the latest step."""
        return self._steps.scheduler.why()

    @property
    def requests(self) -> dict[str, Request]:
        """Open requests, with their counters as of now."""
        for name, now in self._steps.scheduler.snapshot()["requests"].items():
            if request := self._requests.get(name):
                request.status = STATUS[now["state"]]
                request.num_computed_tokens = now["planned"]
                self._catch_up(request)
        return self._requests

    @property
    def running(self) -> list[Request]:
        """Requests that hold blocks, oldest first."""
        requests, now = self.requests, self._steps.scheduler.snapshot()
        return [requests[name] for name in now["running"]]

    @property
    def waiting(self) -> list[Request]:
        """Requests that hold none, in the order in which they are admitted."""
        requests, now = self.requests, self._steps.scheduler.snapshot()
        return [requests[name] for name in (*now["waiting"], *now["parked"])]

    @property
    def finished_req_ids(self) -> set[str]:
        """Requests that ended since the latest step."""
        return self._steps.finished


def _grammar(request: Request) -> Any:
    """The grammar that a request follows; None while it is compiled."""
    return request.structured_output_request.grammar


# -- what vLLM is configured for ----------------------------------------------


def settings_of_ours(vllm_config: Any) -> dict[str, Any]:
    """`--additional-config '{"paceline": {...}}'`."""
    given: Any = vllm_config.additional_config
    return dict(given.get("paceline", {})) if hasattr(given, "get") else {}


def features_in_use(vllm_config: Any, kv_cache_config: Any) -> dict[str, bool]:
    """Which of the features that we refuse are turned on."""
    model, parallel = vllm_config.model_config, vllm_config.parallel_config
    groups, events = kv_cache_config.kv_cache_groups, vllm_config.kv_events_config
    drafting = vllm_config.speculative_config
    ranks = parallel.decode_context_parallel_size * parallel.prefill_context_parallel_size
    return {
        "encoder inputs": model.is_multimodal_model or model.is_encoder_decoder,
        "pooling": model.runner_type == "pooling",
        "prompt_embeds": model.enable_prompt_embeds,
        "kv_transfer_config": vllm_config.kv_transfer_config is not None,
        "ec_transfer_config": vllm_config.ec_transfer_config is not None,
        "kv_events_config": events is not None and events.enable_kv_cache_events,
        "kv_cache_metrics": vllm_config.observability_config.kv_cache_metrics,
        "several KV cache groups": len(groups) > 1,
        "attention other than full": len(groups) == 0
        or not isinstance(groups[0].kv_cache_spec, FullAttentionSpec),
        "pipeline parallelism": parallel.pipeline_parallel_size > 1,
        "context parallelism": ranks > 1,
        "EAGLE and MTP": drafting is not None and drafting.use_eagle(),
        "the second model runner": bool(envs.VLLM_USE_V2_MODEL_RUNNER),
    }


def engine_limits(vllm_config: Any, kv_cache_config: Any, block_size: int) -> EngineLimits:
    limits, drafting = vllm_config.scheduler_config, vllm_config.speculative_config
    lora = vllm_config.lora_config
    return EngineLimits(
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        max_model_len=vllm_config.model_config.max_model_len,
        num_blocks=kv_cache_config.num_blocks,
        block_size=block_size,
        policy=limits.policy,
        enable_prefix_caching=bool(vllm_config.cache_config.enable_prefix_caching),
        enable_chunked_prefill=limits.enable_chunked_prefill,
        long_prefill_token_threshold=limits.long_prefill_token_threshold,
        max_loras=0 if lora is None else lora.max_loras,
        num_speculative_tokens=0 if drafting is None else drafting.num_speculative_tokens,
    )
