"""Runners on a GPU, as the scheduler of a test needs them."""

from paceline import Scheduler
from paceline.core.masks import TokenMasks
from paceline.runner.attention_backend import load
from paceline.runner.cuda.model import CudaModel
from paceline.runner.cuda.runner import CudaRunner, RunnerSizes
from paceline.runner.kv_store import KVStore
from paceline.runner.proposer import Drafter
from paceline.runner.proposers.ngram import Ngram
from tests.runner.support import groups_for


def gpu_runner(
    model: CudaModel,
    scheduler: Scheduler,
    attention: str = "triton",
    masks: TokenMasks | None = None,
    drafter: Drafter | None = None,
) -> CudaRunner:
    config = scheduler.config
    blocks, size = config.cache.num_blocks + 1, config.cache.block_size
    groups = groups_for(model.config, config.cache)
    kv = KVStore(model.config, blocks, size, model.dtype, "cuda", groups)
    step = config.step
    sizes = RunnerSizes(step.max_num_seqs, step.max_model_len, step.max_num_batched_tokens)
    drafts = drafter or Ngram(config.speculation)
    runner = CudaRunner(model, kv, load(attention), drafts, sizes, masks)
    runner.reserve_host(config.preemption.swap_space)
    return runner
