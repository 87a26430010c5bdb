"""Plays every case on vLLM's own scheduler and writes down what it decided, step by step.

    python -m venv VENV && VENV/bin/pip install vllm==0.13.0
    VENV/bin/python -m tests.recorded.record_vllm

No device is needed: nothing runs but the scheduler, and tokens come from the case.
"""

from __future__ import annotations

import functools
import gzip
import json
import os
import tempfile
from pathlib import Path
from typing import Any

os.environ.update(
    HF_HUB_OFFLINE="1",
    VLLM_LOGGING_LEVEL="ERROR",
    VLLM_NO_USAGE_STATS="1",
    VLLM_USE_V2_MODEL_RUNNER="0",
)

# After the environment is set: vLLM reads it when it is imported.
import torch
import vllm
from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from tests.recorded.cases import Ask, Case, Settings, Step, cases, play

VERSION = "0.13.0"
RECORDING = Path(__file__).with_name("vllm_0_13_0.json.gz")

# The smallest description of a model that vLLM accepts; no weights exist.
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_attention_heads": 1,
    "num_hidden_layers": 1,
    "max_position_embeddings": 4096,
    "torch_dtype": "float16",
    "vocab_size": 32,
}


class WatchedScheduler(Scheduler):
    """vLLM's scheduler, which also remembers whom it preempted, in order."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.preempted_ids: list[str] = []

    def _preempt_request(self, request: Request, timestamp: float) -> None:
        self.preempted_ids.append(request.request_id)
        super()._preempt_request(request, timestamp)


class VllmEngine:
    """vLLM's synchronous scheduler behind the interface that `play` drives."""

    def __init__(self, settings: Settings) -> None:
        self._scheduler = self._make(settings)
        self._hasher = None
        if settings["enable_prefix_caching"]:
            digest = get_hash_fn_by_name("sha256")
            init_none_hash(digest)
            self._hasher = get_request_block_hasher(settings["block_size"], digest)
        self._decision: SchedulerOutput | None = None

    def _make(self, settings: Settings) -> Any:
        scheduler = make_scheduler(WatchedScheduler, settings)
        assert _settings_of(scheduler) == settings, "vLLM changed a setting"
        return scheduler

    def _preempted(self) -> list[str]:
        """Requests that were preempted in the latest step, in order."""
        preempted = list(self._scheduler.preempted_ids)
        self._scheduler.preempted_ids.clear()
        return preempted

    def submit(self, ask: Ask, now: float) -> None:
        sampling = SamplingParams(
            max_tokens=ask.max_tokens,
            min_tokens=ask.min_tokens,
            ignore_eos=ask.ignore_eos,
            stop_token_ids=list(ask.stop_token_ids),
            detokenize=False,
        )
        self._scheduler.add_request(
            Request(
                request_id=ask.id,
                prompt_token_ids=list(ask.prompt),
                sampling_params=sampling,
                pooling_params=None,
                eos_token_id=ask.eos_token_id,
                arrival_time=now,
                priority=ask.priority,
                block_hasher=self._hasher,
            )
        )

    def abort(self, request_id: str, now: float) -> str:
        state = self._scheduler.requests[request_id].status.name
        self._scheduler.finish_requests(request_id, RequestStatus.FINISHED_ABORTED)
        return state

    def plan(self, step: Step, now: float) -> list[str]:
        scheduler = self._scheduler
        decision = self._decision = scheduler.schedule()
        step.tokens = dict(decision.num_scheduled_tokens)
        step.preempted = self._preempted()
        step.finished = sorted(decision.finished_req_ids)
        for new in decision.scheduled_new_reqs:
            step.new.append(new.req_id)
            step.cached[new.req_id] = new.num_computed_tokens
            step.blocks[new.req_id] = _usable(new.block_ids)
        known = decision.scheduled_cached_reqs
        for name, computed, blocks in zip(
            known.req_ids, known.num_computed_tokens, known.new_block_ids, strict=True
        ):
            if name in known.resumed_req_ids:
                step.resumed.append(name)
                step.cached[name] = computed
            if blocks is not None:
                step.blocks[name] = _usable(blocks)
        assert decision.preempted_req_ids == set(step.preempted)
        scheduled = (scheduler.requests[name] for name in step.tokens)
        return [r.request_id for r in scheduled if r.num_computed_tokens == r.num_tokens]

    def commit(self, sampled: dict[str, int], now: float) -> dict[str, str]:
        assert self._decision is not None
        names = list(self._decision.num_scheduled_tokens)
        result = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: row for row, name in enumerate(names)},
            sampled_token_ids=[[sampled[name]] if name in sampled else [] for name in names],
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
        )
        by_client = self._scheduler.update_from_output(self._decision, result)
        return {
            output.request_id: str(output.finish_reason)
            for client in by_client.values()
            for output in client.outputs
            if output.finish_reason is not None
        }


def _usable(block_ids: tuple[list[int], ...]) -> list[int]:
    """Ids counted from the first usable block: vLLM keeps block 0 for itself."""
    (only_group,) = block_ids
    return [block - 1 for block in only_group]


def make_scheduler(kind: Any, settings: Settings, **options: bool) -> Any:
    """A scheduler class of vLLM's interface, with these settings."""
    block_size = settings["block_size"]
    blocks = settings["num_blocks"] + 1
    config = VllmConfig(
        model_config=_model_config(settings["max_model_len"]),
        cache_config=CacheConfig(
            block_size=block_size, enable_prefix_caching=settings["enable_prefix_caching"]
        ),
        scheduler_config=SchedulerConfig(
            max_num_seqs=settings["max_num_seqs"],
            max_num_batched_tokens=settings["max_num_batched_tokens"],
            max_model_len=settings["max_model_len"],
            policy=settings["policy"],
            enable_chunked_prefill=settings["enable_chunked_prefill"],
            long_prefill_token_threshold=settings["long_prefill_token_threshold"],
            is_encoder_decoder=False,
        ),
        device_config=DeviceConfig(device="cpu"),
    )
    config.cache_config.num_gpu_blocks = blocks
    attention = FullAttentionSpec(
        block_size=block_size, num_kv_heads=1, head_size=1, dtype=torch.float32
    )
    return kind(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(
            num_blocks=blocks,
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec(["layer"], attention)],
        ),
        structured_output_manager=StructuredOutputManager(config),
        block_size=block_size,
        **options,
    )


def _settings_of(scheduler: Scheduler) -> Settings:
    return Settings(
        max_num_seqs=scheduler.max_num_running_reqs,
        max_num_batched_tokens=scheduler.max_num_scheduled_tokens,
        max_model_len=scheduler.max_model_len,
        num_blocks=scheduler.kv_cache_manager.block_pool.get_num_free_blocks(),
        block_size=scheduler.block_size,
        policy=scheduler.policy.value,
        enable_prefix_caching=scheduler.kv_cache_manager.enable_caching,
        enable_chunked_prefill=scheduler.scheduler_config.enable_chunked_prefill,
        long_prefill_token_threshold=scheduler.scheduler_config.long_prefill_token_threshold,
    )


@functools.cache
def _model_config(max_model_len: int) -> ModelConfig:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(MODEL))
        return ModelConfig(
            model=folder, dtype="float16", skip_tokenizer_init=True, max_model_len=max_model_len
        )


def record(case: Case) -> dict[str, Any]:
    steps = [step.to_plain() for step in play(case, VllmEngine(case.settings))]
    return {"fingerprint": case.fingerprint(), "steps": steps}


def main() -> None:
    assert vllm.__version__ == VERSION, f"this records vLLM {VERSION}, not {vllm.__version__}"
    recording = {
        "what": "Scheduling decisions of vLLM's synchronous scheduler on the cases of cases.py",
        "vllm": vllm.__version__,
        "made_by": "python -m tests.recorded.record_vllm",
        "cases": {case.name: record(case) for case in cases()},
    }
    text = json.dumps(recording, separators=(",", ":"))
    RECORDING.write_bytes(gzip.compress(text.encode(), compresslevel=9, mtime=0))
    print(f"{RECORDING.name}: {len(recording['cases'])} cases, {RECORDING.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
