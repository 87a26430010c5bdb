"""The peer's side: vLLM 0.13.0's Scheduler and AsyncScheduler, without a model or a device.

In an environment made by `setup.sh VENV`: `VENV/bin/python bench.py steady:64 async:64 churn`.
"""

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))
os.environ.update(
    HF_HUB_OFFLINE="1",
    TRANSFORMERS_OFFLINE="1",
    VLLM_LOGGING_LEVEL="ERROR",
    VLLM_NO_USAGE_STATS="1",
)

import torch  # noqa: E402
import vllm  # noqa: E402
from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig  # noqa: E402
from vllm.envs import enable_envs_cache  # noqa: E402
from vllm.sampling_params import SamplingParams  # noqa: E402
from vllm.utils.hashing import get_hash_fn_by_name  # noqa: E402
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash  # noqa: E402
from vllm.v1.core.sched.async_scheduler import AsyncScheduler  # noqa: E402
from vllm.v1.core.sched.output import SchedulerOutput  # noqa: E402
from vllm.v1.core.sched.scheduler import Scheduler  # noqa: E402
from vllm.v1.kv_cache_interface import (  # noqa: E402
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
)
from vllm.v1.outputs import ModelRunnerOutput  # noqa: E402
from vllm.v1.request import Request, RequestStatus  # noqa: E402
from vllm.v1.structured_output import StructuredOutputManager  # noqa: E402

# isort: split
from cases import BLOCK_SIZE, MAX_MODEL_LEN, Case  # noqa: E402
from harness import Counts, Step, serve  # noqa: E402
from workloads import FAKE_TOKEN, Work  # noqa: E402

EOS = 2


def step_of(plan: SchedulerOutput, sampled: list[list[int]]) -> Step:
    """A step that samples these tokens, by request."""
    ids = list(plan.num_scheduled_tokens)
    result = ModelRunnerOutput(
        req_ids=ids,
        req_id_to_index={request_id: row for row, request_id in enumerate(ids)},
        sampled_token_ids=sampled,
        logprobs=None,
        prompt_logprobs_dict={},
        pooler_output=[],
    )
    samples = sum(map(len, sampled))
    return Step(plan, result, plan.total_num_scheduled_tokens, len(ids), samples)


class VllmSide:
    """vLLM's scheduler as its engine core drives it, statistics on."""

    def __init__(self, case: Case, work: list[Work]) -> None:
        config = vllm_config(case)
        self._scheduler = make_scheduler(config, case)
        hash_function = get_hash_fn_by_name(config.cache_config.prefix_caching_hash_algo)
        init_none_hash(hash_function)
        self._hasher = get_request_block_hasher(BLOCK_SIZE, hash_function)
        self._sampling = [
            SamplingParams(temperature=0.6, ignore_eos=True, max_tokens=item.max_tokens)
            for item in work
        ]
        self._requests: list[Request] = []
        self._prefix_queries = self._prefix_hits = 0

    def submit(self, serial: int, work: Work) -> None:
        request = Request(
            request_id=str(serial),
            prompt_token_ids=work.prompt,
            sampling_params=self._sampling[serial],
            pooling_params=None,
            eos_token_id=EOS,
            block_hasher=self._hasher,
        )
        self._requests.append(request)
        self._scheduler.add_request(request)

    def plan(self) -> SchedulerOutput:
        return self._scheduler.schedule()

    def fake(self, plan: SchedulerOutput) -> Step:
        """A token for every request whose known tokens are all computed by this step."""
        ids = list(plan.num_scheduled_tokens)
        requests = [self._scheduler.requests[request_id] for request_id in ids]
        sampled = [
            [FAKE_TOKEN] if request.num_computed_tokens >= request.num_tokens else []
            for request in requests
        ]
        return step_of(plan, sampled)

    def commit(self, plan: SchedulerOutput, result: ModelRunnerOutput) -> Any:
        return self._scheduler.update_from_output(plan, result)

    def observe(self, outputs: Any) -> None:
        for engine_outputs in outputs.values():
            stats = engine_outputs.scheduler_stats
            if stats is not None and stats.prefix_cache_stats is not None:
                self._prefix_queries += stats.prefix_cache_stats.queries
                self._prefix_hits += stats.prefix_cache_stats.hits

    def unfinished(self) -> int:
        return self._scheduler.get_num_unfinished_requests()

    def release(self, serials: Iterable[int]) -> None:
        self._scheduler.finish_requests(map(str, serials), RequestStatus.FINISHED_ABORTED)

    def counts(self) -> Counts:
        preemptions = sum(request.num_preemptions for request in self._requests)
        return Counts(preemptions, self._prefix_queries, self._prefix_hits)


def vllm_config(case: Case) -> VllmConfig:
    cache = CacheConfig(
        block_size=BLOCK_SIZE,
        gpu_memory_utilization=0.9,
        cache_dtype="auto",
        enable_prefix_caching=True,
    )
    cache.num_gpu_blocks = case.num_blocks
    return VllmConfig(
        scheduler_config=SchedulerConfig(
            max_num_seqs=case.max_num_seqs,
            max_num_batched_tokens=case.max_num_batched_tokens,
            max_model_len=MAX_MODEL_LEN,
            enable_chunked_prefill=True,
            async_scheduling=case.depth > 1,
            is_encoder_decoder=False,
        ),
        model_config=ModelConfig(
            model=str(HERE / "model"),
            dtype="float16",
            seed=42,
            skip_tokenizer_init=True,
            max_model_len=MAX_MODEL_LEN,
        ),
        cache_config=cache,
    )


def make_scheduler(config: VllmConfig, case: Case, kind: Any = None) -> Any:
    """vLLM's scheduler, or another class of its interface."""
    if kind is None:
        kind = AsyncScheduler if case.depth > 1 else Scheduler
    spec = FullAttentionSpec(
        block_size=BLOCK_SIZE, num_kv_heads=1, head_size=1, dtype=torch.float32
    )
    kv_cache = KVCacheConfig(
        num_blocks=case.num_blocks,
        kv_cache_tensors=[],
        kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
    )
    return kind(
        vllm_config=config,
        kv_cache_config=kv_cache,
        block_size=BLOCK_SIZE,
        log_stats=True,
        structured_output_manager=StructuredOutputManager(config),
    )


if __name__ == "__main__":
    enable_envs_cache()
    serve(VllmSide, {"peer": f"vLLM {vllm.__version__}"})
