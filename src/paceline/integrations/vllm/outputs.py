"""What vLLM gets of a step: tokens and ends for its clients, and statistics."""

from collections import Counter, defaultdict

# pyright: reportMissingModuleSource=false
from dataclasses import replace
from typing import Any

from vllm.logger import init_logger
from vllm.v1.engine import EngineCoreEventType, EngineCoreOutput, EngineCoreOutputs
from vllm.v1.metrics.stats import PrefixCacheStats, SchedulerStats
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.spec_decode.metrics import SpecDecodingStats

from paceline.core.plan import Ended
from paceline.core.request import Finish
from paceline.integrations.vllm.settings import stop_reason
from paceline.integrations.vllm.worker_steps import WorkerStep, WorkerSteps, Yielded

# pyright: reportMissingModuleSource=false


logger = init_logger("vllm.paceline")  # vLLM sets up loggers below its own name

FINISHED = {
    Finish.STOP: RequestStatus.FINISHED_STOPPED,
    Finish.LENGTH: RequestStatus.FINISHED_LENGTH_CAPPED,
}
Outputs = dict[int, list[EngineCoreOutput]]  # by client


class OutputWriter:
    """Writes the tokens of each step as outputs.

    Most requests need their tokens and nothing else. `_notable` names the others: those that want
    log-probabilities or have trace headers, and those with `_events` to report.
    """

    def __init__(self, log_events: bool, include_finished_set: bool) -> None:
        self._log_events = log_events
        self._notable: set[str] = set()
        self._events: set[str] = set()
        self._clients: Counter[int] = Counter()  # open requests
        self._refused: list[Request] = []
        self._ids: list[str] = []  # of the latest step
        self._cached: list[int] = []  # tokens that each of them found in the prefix cache
        self._finished: defaultdict[int, set[str]] | None = None  # by client
        if include_finished_set:
            self._finished = defaultdict(set)

    # -- requests -----------------------------------------------------------

    def opened(self, request: Request) -> None:
        self._clients[request.client_index] += 1
        params = request.sampling_params
        if request.trace_headers or (params is not None and params.logprobs is not None):
            self._notable.add(request.request_id)
        self.note(request, EngineCoreEventType.QUEUED)

    def note(self, request: Request, event: EngineCoreEventType) -> None:
        """Report an event with the next tokens of a request."""
        if self._log_events:
            request.record_event(event)
            self._events.add(request.request_id)

    def refuse(self, request: Request, message: str) -> None:
        """Report an error with the next outputs, instead of tokens."""
        logger.error("Request %s is refused: %s", request.request_id, message)
        request.status = RequestStatus.FINISHED_ERROR
        self._refused.append(request)
        self._name_finished(request)

    def closed(self, request: Request) -> None:
        client = request.client_index
        self._clients[client] -= 1
        if not self._clients[client]:
            del self._clients[client]
        self._notable.discard(request.request_id)
        self._events.discard(request.request_id)
        self._name_finished(request)

    def _name_finished(self, request: Request) -> None:
        if self._finished is not None:
            self._finished[request.client_index].add(request.request_id)

    # -- steps --------------------------------------------------------------

    def write(
        self, yielded: Yielded, found: ModelRunnerOutput, requests: dict[str, Request]
    ) -> Outputs:
        """The outputs of a step by client."""
        if yielded.ids is not self._ids:  # steps of a steady decode share it
            self._ids = yielded.ids
            self._cached = [requests[request_id].num_cached_tokens for request_id in yielded.ids]
        columns = zip(yielded.ids, yielded.tokens, self._cached, strict=True)
        made = [
            EngineCoreOutput(request_id, tokens, num_cached_tokens=cached)
            for request_id, tokens, cached in columns
        ]
        special = self._notable or self._events or yielded.ended or found.prompt_logprobs_dict
        if special or found.num_nans_in_logits:
            by_id = {output.request_id: output for output in made}
            for end in yielded.ended:
                if end.request_id in requests:
                    self._end(end, requests[end.request_id], by_id)
            self._complete(by_id, found, requests)
            made = list(by_id.values())
        return self._by_client(made, requests)

    def _end(self, end: Ended, request: Request, by_id: dict[str, EngineCoreOutput]) -> None:
        request.status = FINISHED.get(end.finish, RequestStatus.FINISHED_ERROR)
        if end.message:
            logger.error("Request %s ended: %s", end.request_id, end.message)
        output = by_id.get(end.request_id)
        if output is None:
            output = by_id[end.request_id] = EngineCoreOutput(end.request_id, [])
        output.finish_reason = request.get_finished_reason()
        output.stop_reason = request.stop_reason = stop_reason(request, end)

    def _complete(
        self,
        by_id: dict[str, EngineCoreOutput],
        found: ModelRunnerOutput,
        requests: dict[str, Request],
    ) -> None:
        """Add what single requests want besides tokens."""
        for request_id in self._events & by_id.keys():
            by_id[request_id].events = requests[request_id].take_events()
            self._events.discard(request_id)
        for request_id in self._notable & by_id.keys():
            request, output = requests[request_id], by_id[request_id]
            output.trace_headers = request.trace_headers
            if found.logprobs and request.sampling_params.logprobs is not None:
                row = found.req_id_to_index[request_id]
                output.new_logprobs = found.logprobs.slice_request(row, len(output.new_token_ids))
        for request_id, scores in found.prompt_logprobs_dict.items():
            if request_id in by_id:
                by_id[request_id].new_prompt_logprobs_tensors = scores
        for request_id, number in (found.num_nans_in_logits or {}).items():
            if request_id in by_id:
                by_id[request_id].num_nans_in_logits = number

    def _by_client(self, made: list[EngineCoreOutput], requests: dict[str, Request]) -> Outputs:
        written: defaultdict[int, list[EngineCoreOutput]] = defaultdict(list)
        if len(self._clients) == 1 and made:
            written[next(iter(self._clients))] = made
        else:
            for output in made:
                written[requests[output.request_id].client_index].append(output)
        for request in self._refused:
            reason = request.get_finished_reason()
            refusal = EngineCoreOutput(request.request_id, [], finish_reason=reason)
            written[request.client_index].append(refusal)
        self._refused.clear()
        return written

    def deliver(
        self, written: Outputs, stats: SchedulerStats | None
    ) -> dict[int, EngineCoreOutputs]:
        """Add the requests that finished, and the statistics, which only one client gets."""
        delivery = {client: EngineCoreOutputs(outputs=made) for client, made in written.items()}
        for client, finished in (self._finished or {}).items():
            outputs = delivery.setdefault(client, EngineCoreOutputs())
            outputs.finished_requests = finished
        if self._finished:
            self._finished.clear()
        if stats is not None:
            first = next(iter(delivery), 0)
            delivery.setdefault(first, EngineCoreOutputs()).scheduler_stats = stats
        return delivery


class EngineStats:
    """Counts between two reports. `_reported` has our totals at the latest one."""

    def __init__(self, steps: WorkerSteps, num_speculative_tokens: int) -> None:
        self._steps = steps
        self._num_speculative_tokens = num_speculative_tokens
        self._reported = replace(steps.scheduler.stats)
        self._lookups = PrefixCacheStats()
        self._drafts: SpecDecodingStats | None = None

    def admitted(self, step: WorkerStep) -> None:
        """Count the requests that looked into the prefix cache."""
        if not self._steps.scheduler.config.cache.enable_prefix_caching:
            return
        resumed = sum(one.resumed for one in step.plan.admitted)
        self._lookups.preempted_requests += resumed
        self._lookups.requests += len(step.plan.admitted) - resumed

    def cache_was_reset(self) -> None:
        self._lookups.reset = True

    def verified(self, yielded: Yielded) -> None:
        """Count the drafts of a step."""
        for drafts, accepted in yielded.verified:
            if self._drafts is None:
                self._drafts = SpecDecodingStats.new(self._num_speculative_tokens)
            self._drafts.observe_draft(drafts, accepted)

    def report(self, cudagraph_stats: Any = None) -> SchedulerStats:
        """What happened since the latest report, and how things stand."""
        lookups, self._lookups = self._lookups, PrefixCacheStats()
        if lookups.requests or lookups.preempted_requests:
            now, before = replace(self._steps.scheduler.stats), self._reported
            lookups.queries = now.prefix_queries - before.prefix_queries
            lookups.hits = now.prefix_hits - before.prefix_hits
            lookups.preempted_queries = now.resumed_queries - before.resumed_queries
            lookups.preempted_hits = now.resumed_hits - before.resumed_hits
            self._reported = now
        drafts, self._drafts = self._drafts, None
        return SchedulerStats(
            num_running_reqs=self._steps.running,
            num_waiting_reqs=self._steps.waiting,
            kv_cache_usage=self._steps.scheduler.usage,
            prefix_cache_stats=lookups,
            spec_decoding_stats=drafts,
            cudagraph_stats=cudagraph_stats,
        )
