"""An invariant model on a GPU: each log-probability has the bits that it has alone."""

from collections import Counter
from functools import cache, partial
from typing import Any

import pytest
import torch

from paceline import Scheduler
from paceline.runner.cuda.gemm.fixed_tiles import Tiles, multiplied, tiles_of
from paceline.runner.cuda.model import CudaModel
from paceline.runner.cuda.runner import CudaRunner
from paceline.runner.models.config import ModelConfig
from paceline.runner.weights.dummy import Dummy
from tests.conformance.architectures import Case
from tests.gpu.runners import gpu_runner
from tests.gpu.support import ON_GPU
from tests.property.same_tokens import Schedule, differences
from tests.seeds import seeds

pytestmark = ON_GPU

DENSE: dict[str, Any] = {  # Qwen3 0.6B with fewer layers
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 3072,
    "vocab_size": 151936,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "tie_word_embeddings": True,
}
EXPERTS: dict[str, Any] = {  # Qwen3 30B-A3B with fewer layers
    **DENSE,
    "architectures": ["Qwen3MoeForCausalLM"],
    "hidden_size": 2048,
    "num_hidden_layers": 2,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "tie_word_embeddings": False,
}
CONFIGS: dict[str, ModelConfig] = {
    "dense": ModelConfig.of_hf(DENSE),
    "experts": ModelConfig.of_hf(EXPERTS),
    "windows": Case("gptoss").config(),
    "caps": Case("gemma2").config(),
    "fp8, decoded": ModelConfig.of_hf(DENSE).loaded_as("fp8"),
}


@cache
def model_of(name: str) -> CudaModel:
    return CudaModel.invariant(Dummy(CONFIGS[name], seed=3), 64)


@pytest.mark.parametrize("shape", [(1024, 4096), (3072, 1024), (2048, 1536), (151936, 1024)])
def test_tiles_of_all_sizes_add_in_the_same_order(shape: tuple[int, int]) -> None:
    """Each row alone, and in products of any number of rows, which have tiles of other sizes."""
    generator = torch.Generator("cuda").manual_seed(1)
    on: dict[str, Any] = {"device": "cuda", "generator": generator}
    weight = torch.randn(shape, **on).bfloat16()
    x = torch.randn((2100, shape[1]), **on).bfloat16()
    whole = multiplied(x, weight)
    for rows in (1, 2, 16, 63, 64, 65, 200, 512, 513, 1024, 2048):
        for first in (0, 37):
            assert torch.equal(
                multiplied(x[first : first + rows], weight), whole[first : first + rows]
            )
    sizes = {tiles_of(rows, shape[0], x.dtype) for rows in (1, 100, 2000)}
    for tiles in (*sizes, Tiles(64, 64, 64, 4, 3), Tiles(128, 256, 64, 8, 3)):
        assert torch.equal(multiplied(x, weight, tiles=tiles), whole), tiles


@pytest.mark.parametrize("name", CONFIGS)
def test_every_log_probability_has_the_bits_that_it_has_alone(name: str) -> None:
    """With `PACELINE_TEST_SEEDS=20`, thousands of steps."""
    model, seen = model_of(name), Counter[str]()

    def runner_of(scheduler: Scheduler, is_warm: bool = False) -> CudaRunner:
        runner = gpu_runner(model, scheduler, "triton_fixed")
        if is_warm:
            runner.warm(scheduler.config.speculation.num_speculative_tokens > 0)
        return runner

    for seed in seeds(3):
        schedule = Schedule(seed, changes={"block_size": 8, "num_blocks": 20})
        assert not differences(schedule, partial(runner_of, is_warm=seed % 3 == 0))
        seen += schedule.seen
    assert seen["tokens"] > 500
    assert seen["drafted"]
    assert seen["cached"]
