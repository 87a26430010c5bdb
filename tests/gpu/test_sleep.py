"""A model on a GPU gives its memory back and takes it again, and gets other weights in place, while
its CUDA graphs stay as they were captured."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from paceline import LLM, SamplingParams
from paceline.core.errors import RequestError
from paceline.engine.api import EngineUnavailable
from paceline.runner.cuda import device_memory
from paceline.runner.cuda.device_memory import DevicePools, Tag
from paceline.runner.weights.safetensors import SINGLE
from tests.gpu.support import ON_GPU
from tests.wiring.support import real_model

pytestmark = ON_GPU

SIZES: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 1024,
    "intermediate_size": 2048,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "max_position_embeddings": 2048,
}
# So many blocks, so that other engines have room beside it.
SETTINGS: dict[str, Any] = {
    "device": "cuda",
    "num_gpu_blocks_override": 16384,  # 2 GiB
    "max_num_seqs": 16,
}
GREEDY = SamplingParams(max_tokens=24, temperature=0.0, logprobs=2, ignore_eos=True)
PROMPTS = [
    {"prompt_token_ids": [(7 * one + tail) % 397 for one in range(40 * tail + 9)]}
    for tail in range(1, 9)
]
MIB = 1 << 20
CELL_BYTES = 4 * 2 * 4 * 128 * 2  # layers, keys and values, heads, their size, bf16


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("models")
    return [real_model(folder / str(seed), seed, **SIZES) for seed in range(2)]


@pytest.fixture(scope="module")
def sleeper(folders: list[Path]) -> Iterator[LLM]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device_memory, "PINNED_AT_ONCE", 5 * MIB)  # weights cross its pieces
        with LLM(str(folders[0]), **SETTINGS, enable_sleep_mode=True) as llm:
            yield llm


def said(llm: LLM) -> list[Any]:
    outputs = llm.generate(PROMPTS, GREEDY, progress=False, raise_on_error=True)
    return [(one.outputs[0].token_ids, one.outputs[0].logprobs) for one in outputs]


def free_bytes() -> int:
    torch.cuda.synchronize()
    return torch.cuda.mem_get_info()[0]


@pytest.mark.parametrize("turn", range(2))
def test_memory_is_given_back_and_tokens_are_the_same_afterwards(sleeper: LLM, turn: int) -> None:
    sleeper.update_weights()
    due, before = said(sleeper), free_bytes()
    cache = sleeper.get_metrics().cache_config
    kv = cache["num_gpu_blocks"] * cache["block_size"] * CELL_BYTES
    sleeper.sleep(level=1)
    asleep = free_bytes()
    assert asleep - before >= kv + 64 * MIB  # of weights
    with pytest.raises(EngineUnavailable, match="asleep"):
        said(sleeper)
    sleeper.wake_up()
    assert asleep - free_bytes() >= kv + 64 * MIB
    assert said(sleeper) == due


def test_weights_wake_up_before_kv_and_are_updated_in_between(
    sleeper: LLM, folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages are often those that were given back: here they have another content."""
    restore = DevicePools.restore

    def restored(pools: DevicePools, tag: Tag) -> None:
        restore(pools, tag)
        for one in pools.content(tag):
            one.fill_(0xFF)

    monkeypatch.setattr(DevicePools, "restore", restored)
    with LLM(str(folders[1]), **SETTINGS) as fresh:
        due = said(fresh)
    before = free_bytes()
    for level in (1, 2):
        sleeper.sleep(level)
        sleeper.wake_up(tags=["weights"])
        assert free_bytes() > before + 1024 * MIB  # that of KV
        sleeper.update_weights(folders[1])
        sleeper.wake_up(tags=["kv_cache"])
        assert said(sleeper) == due


@pytest.mark.parametrize("quantization", ["auto", "fp8", "int4", "int8"])
@pytest.mark.parametrize("eager", [False, True])
def test_new_weights_are_those_of_a_fresh_engine(
    folders: list[Path], quantization: str, eager: bool
) -> None:
    """With graphs, and with weights in every format that kernels keep."""
    settings = {**SETTINGS, "quantization": quantization, "enforce_eager": eager}
    with LLM(str(folders[1]), **settings) as fresh:
        due = said(fresh)
    with LLM(str(folders[0]), **settings) as llm:
        first = said(llm)
        assert first != due
        llm.update_weights(folders[1])
        assert said(llm) == due
        llm.update_weights(load_file(folders[0] / SINGLE))
        assert said(llm) == first
        with pytest.raises(RequestError, match=r"the weights stay as they are: .*missing"):
            llm.update_weights({"lm_head.weight": torch.zeros(2)})
        llm.reset_prefix_cache()
        assert said(llm) == first
        with pytest.raises(RequestError, match="only with enable_sleep_mode"):
            llm.sleep()
