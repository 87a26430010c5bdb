"""An invariant model on a GPU: each log-probability has the bits that it has alone."""

import json
from collections import Counter
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline import LLM, Request, Scheduler
from paceline.core.sampling import Sampling
from paceline.runner.attention_backend import Queries, load
from paceline.runner.cuda.adapters import AdapterSizes
from paceline.runner.cuda.gemm.fixed_tiles import (
    FixedTiles,
    Tiles,
    multiplied,
    multiply_codes,
    tiles_of,
)
from paceline.runner.cuda.gemm.fp8_codes import quantized_rows
from paceline.runner.cuda.gemm.linear_kernel import LinearWeights
from paceline.runner.cuda.model import CudaModel
from paceline.runner.cuda.residents import CudaImages
from paceline.runner.cuda.runner import CudaRunner
from paceline.runner.models.config import ModelConfig
from paceline.runner.models.layer_groups import one_group
from paceline.runner.models.states.state_layout import StateLayout
from paceline.runner.weights.dummy import Dummy
from paceline.runner.weights.matrix import PlainMatrix
from paceline.runner.weights.quantized_matrix import ScaledMatrix
from paceline.wiring.memory import state_bytes
from paceline.wiring.settings import block_bytes
from tests.conformance.architectures import Case
from tests.gpu.quantized_linears import FP8_SCALED, quantized
from tests.gpu.runners import gpu_runner
from tests.gpu.support import ON_GPU
from tests.gpu.test_images import KINDS, ROWS, asked, source
from tests.property.same_tokens import Schedule, Scores, differences, driven
from tests.property.three_modes import all_modes
from tests.runner.adapters.support import write_adapter
from tests.runner.driving import SETTINGS
from tests.runner.support import filled_store, rows_of, tiny
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
HYBRID: dict[str, Any] = {  # Qwen3-Next with fewer layers and experts
    **EXPERTS,
    "architectures": ["Qwen3NextForCausalLM"],
    "num_hidden_layers": 3,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "partial_rotary_factor": 0.25,
    "layer_types": ["linear_attention", "linear_attention", "full_attention"],
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "num_experts": 32,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}
CONFIGS: dict[str, ModelConfig] = {
    "dense": ModelConfig.of_hf(DENSE),
    "experts": ModelConfig.of_hf(EXPERTS),
    "windows": Case("gptoss").config(),
    "caps": Case("gemma2").config(),
    "fp8": ModelConfig.of_hf(DENSE).loaded_as("fp8"),
    "int4, decoded": ModelConfig.of_hf(DENSE).loaded_as("int4"),
    "latents": Case("deepseekv3").config(),
    "inputs of layers": Case("gemma4").config(),
    "gated delta nets": ModelConfig.of_hf(HYBRID),
    "KDA and latents": Case("kimilinear").config(),
    "Mamba-2": Case("falconh1", "norm before gate").config(),
    "Mamba-1": Case("jamba").config(),
    "convolutions": Case("lfm2").config(),
}
HALF_BYTES = 2  # of a number in 16 bits


@cache
def model_of(name: str) -> CudaModel:
    return CudaModel.invariant(Dummy(CONFIGS[name], seed=3), 64)


def changes_for(config: ModelConfig) -> dict[str, Any]:
    """The settings of schedules for a model: few blocks, and more if sequences have states."""
    if config.states is None:
        return {"block_size": 8, "num_blocks": 20}
    block = block_bytes(config, 8, HALF_BYTES, groups=one_group(config.windows))
    of_state = -(-state_bytes(config, HALF_BYTES) // block)
    changes = {"block_size": 8, "num_blocks": 14 + 3 * of_state, "state_blocks": of_state}
    layout = StateLayout.of(config, HALF_BYTES)
    assert layout is not None
    return changes if layout.keeps_updates else {**changes, "num_speculative_tokens": 0}


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
    kernel = FixedTiles(LinearWeights("linear", PlainMatrix(weight), None, None, x.dtype), weight)
    for rows in (1, 64, 65, 128, 200, 512, 1000, 2048):
        assert torch.equal(kernel.plain(x[:rows]), whole[:rows])
        total, due = (whole[:rows].flip(0).contiguous() for _ in range(2))
        kernel.add_to(total, x[:rows])
        assert torch.equal(total, multiplied(x[:rows], weight, total=due))
    sizes = {tiles_of(rows, shape[0], x.dtype) for rows in (1, 100, 2000)}
    for tiles in (*sizes, Tiles(64, 64, 64, 4, 3), Tiles(128, 256, 64, 8, 3)):
        assert torch.equal(multiplied(x, weight, tiles=tiles), whole), tiles


@pytest.mark.parametrize("name", FP8_SCALED)
def test_tiles_of_codes_add_in_the_same_order(name: str) -> None:
    matrix = quantized(name, (3072, 2048), False).matrix
    assert isinstance(matrix, ScaledMatrix)
    group = 0 if matrix.is_by_row else 128
    x = torch.randn(700, 2048, device="cuda").bfloat16()

    def found(rows: int, tiles: Tiles | None = None) -> torch.Tensor:
        codes, scale = quantized_rows(x[:rows], None, None, group)
        out = x.new_empty(rows, 3072)
        multiply_codes(codes, scale, matrix, out, tiles=tiles)
        return out

    whole = found(700)
    for rows in (1, 16, 63, 64, 65, 128, 129, 512):
        assert torch.equal(found(rows), whole[:rows])
    for tiles in (Tiles(64, 64, 128, 4, 3), Tiles(128, 64, 128, 8, 3)):
        assert torch.equal(found(700, tiles), whole), tiles


@pytest.mark.parametrize("name", CONFIGS)
def test_every_log_probability_has_the_bits_that_it_has_alone(name: str) -> None:
    """With `PACELINE_TEST_SEEDS=20`, thousands of steps."""
    model, seen = model_of(name), Counter[str]()

    def runner_of(scheduler: Scheduler, is_warm: bool = False) -> CudaRunner:
        runner = gpu_runner(model, scheduler, "triton_fixed")
        if is_warm:
            runner.warm(scheduler.config.speculation.num_speculative_tokens > 0)
        return runner

    has_states = CONFIGS[name].states is not None
    for seed in seeds(2 if has_states else 3):
        schedule = Schedule(seed, changes=changes_for(CONFIGS[name]))
        assert not differences(schedule, partial(runner_of, is_warm=seed % 3 == 0))
        seen += schedule.seen
    assert seen["tokens"] > 500
    if not has_states:
        assert seen["drafted"]
        assert seen["cached"]


def test_adapters_of_other_rows_change_no_bit(tmp_path: Path) -> None:
    room = AdapterSizes(2, 8)
    model = CudaModel.invariant(Dummy(CONFIGS["dense"], seed=3), 64, adapters=room)
    folders = {
        name: write_adapter(tmp_path / name, model.config, seed, r=4 * seed)
        for seed, name in enumerate("xy", 1)
    }

    def runner_of(scheduler: Scheduler) -> CudaRunner:
        runner = gpu_runner(model, scheduler, "triton_fixed")
        host = runner.host_adapters
        assert host is not None
        for name, folder in folders.items():
            host.keep(name, host.read(str(folder)))
        return runner

    for seed in seeds(2):
        changes = {"block_size": 8, "num_blocks": 20, "max_loras": 2}
        assert not differences(Schedule(seed, ("", "x", "y"), changes), runner_of)


@pytest.mark.parametrize("kind", KINDS)
def test_images_of_other_requests_change_no_bit(kind: str) -> None:
    model = CudaModel.invariant(source(kind), 64, image_rows=ROWS)
    requests = [replace(one, sampling=Sampling(logprobs=2), ignore_eos=True) for one in asked(kind)]

    def found(together: list[Request], **changes: Any) -> Scores:
        scheduler = Scheduler.create(**{**SETTINGS, **changes})
        runner = gpu_runner(model, scheduler, "triton_fixed")
        assert model.images is not None
        runner.use_images(CudaImages(model.images, model, runner.state))
        return driven(scheduler, runner, together, depth=2)

    alone = Scores()
    for request in requests:
        alone.bits |= found([request], enable_prefix_caching=False).bits
    for changes in ({}, {"max_num_batched_tokens": 8}):
        together = found(requests, **changes)
        assert together.bits == alone.bits
        assert not together.changed


def test_every_question_has_one_answer(tmp_path: Path) -> None:
    """SGLang's three modes."""
    (tmp_path / "config.json").write_text(json.dumps(DENSE))
    room: dict[str, Any] = {"max_model_len": 1024, "kv_cache_gib": 1, "max_num_seqs": 16}
    with LLM(str(tmp_path), load_format="dummy", batch_invariant=True, **room) as llm:
        for mode, found in all_modes(llm, 700, 40).items():
            assert {len(one) for one in found.values()} == {1}, mode


def test_a_context_of_many_parts_has_one_sum() -> None:
    """Decodes share long contexts among programs, and prompts do not."""
    config = tiny(num_attention_heads=16, num_key_value_heads=8, head_dim=128)
    batch, blocks = rows_of([(1, 5000), (1, 700)], 16, "cuda")
    kv = filled_store(config, blocks, 16, dtype=torch.bfloat16, device="cuda")
    query = torch.randn(2, 16, 128, device="cuda").bfloat16()
    backend, bounds = load("triton_fixed"), torch.tensor([0, 2], dtype=torch.int32, device="cuda")
    queries = Queries(16, torch.bfloat16)
    for window in (None, 3000):
        tiles = backend.prepare_mixed_graph(batch, kv, bounds, 2, queries)
        tiles.lay_out()
        due = tiles.attend(query, 0, window, 0.1)
        assert torch.equal(backend.prepare(batch, kv).attend(query, 0, window, 0.1), due)
