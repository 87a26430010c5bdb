"""Statistics of our scheduler in vLLM's form."""

# pyright: reportMissingModuleSource=false

from dataclasses import replace
from typing import Any

from vllm.v1.metrics.stats import PrefixCacheStats, SchedulerStats
from vllm.v1.spec_decode.metrics import SpecDecodingStats

from paceline.integrations.vllm.worker_steps import WorkerStep, WorkerSteps, Yielded


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
