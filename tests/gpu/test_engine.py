"""Whole engines on a GPU, built by name with random weights: every way to the same tokens."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.engine.api import SamplingParams
from paceline.engine.offline.offline import OfflineEngine
from paceline.wiring.assembly import build
from tests.conformance.architectures import SIZES
from tests.gpu.support import ON_GPU

pytestmark = ON_GPU

SHARED = list(range(3, 40))
PROMPTS = [[*SHARED, 7], [*SHARED, 9, 9], [5] * 50, [1, 2, 3], [*SHARED, 7, 8, 8], [60, 61] * 12]
PLAIN: dict[str, Any] = {
    "load_format": "dummy",
    "dtype": "float32",
    "max_model_len": 128,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 128,
    "block_size": 4,
    "num_gpu_blocks_override": 256,
}
TIGHT = {"num_gpu_blocks_override": 40, "watermark": 0.0}
SWAP = {**TIGHT, "preemption_mode": "swap", "swap_space": 0.01}
WAYS: dict[str, dict[str, Any]] = {
    "one step at a time": {"async_scheduling": False},
    "three ahead": {"depth": 3},
    "without the prefix cache": {"enable_prefix_caching": False},
    "in chunks": {"max_num_batched_tokens": 16},
    "prefill first": {"discipline": "prefill_first"},
    "recomputed": TIGHT,
    "swapped": SWAP,
    "drafted": {"num_speculative_tokens": 3},
    "without graphs": {"enforce_eager": True},
    "drafted, without graphs": {"num_speculative_tokens": 3, "enforce_eager": True},
}
SAMPLING = [
    {"temperature": 0.0},
    {"temperature": 0.8, "seed": 5},
    {"temperature": 0.8, "seed": 5, "top_p": 0.9, "presence_penalty": 0.3},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder that describes a small model."""
    folder = Path(tmp_path_factory.mktemp("tiny"))
    described = {"architectures": ["LlamaForCausalLM"], **SIZES, "num_hidden_layers": 3}
    (folder / "config.json").write_text(json.dumps(described))
    return str(folder)


def tokens(llm: OfflineEngine, **sampling: Any) -> list[Any]:
    params = SamplingParams(max_tokens=40, ignore_eos=True, **sampling)
    told = llm.generate(PROMPTS, params, progress=False)
    assert not any(one.error for one in told)
    return [[answer.token_ids for answer in one.outputs] for one in told]


@pytest.fixture(scope="module")
def plainly(folder: str) -> list[Any]:
    llm = OfflineEngine(folder, build, **PLAIN)
    return [tokens(llm, **sampling) for sampling in SAMPLING]


@pytest.mark.parametrize("way", WAYS)
def test_tokens_are_the_same_however_they_are_scheduled(
    folder: str, plainly: list[Any], way: str
) -> None:
    llm = OfflineEngine(folder, build, **{**PLAIN, **WAYS[way]})
    assert [tokens(llm, **sampling) for sampling in SAMPLING] == plainly


def test_choices_and_beams_come_again_however_they_are_scheduled(folder: str) -> None:
    found = []
    tight = {"num_gpu_blocks_override": 90}
    for settings in (PLAIN, {**PLAIN, **tight}, {**PLAIN, "async_scheduling": False}):
        llm = OfflineEngine(folder, build, **settings)
        several = tokens(llm, n=3, temperature=1.0, seed=3)
        assert all(len({*choices}) == 3 for choices in several)
        found.append((several, tokens(llm, n=2, use_beam_search=True, beam_width=3)))
    assert found[0] == found[1] == found[2]


def prompt_logprobs(llm: OfflineEngine) -> list[list[float]]:
    params = SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True, prompt_logprobs=2)
    told = llm.generate(PROMPTS, params, progress=False)
    assert not any(one.error for one in told)
    entries = [(one.prompt_logprobs or (None,))[1:] for one in told]
    return [[entry.chosen.logprob for entry in own if entry] for own in entries]


@pytest.fixture(scope="module")
def scored_plainly(folder: str) -> list[list[float]]:
    return prompt_logprobs(OfflineEngine(folder, build, **PLAIN))


@pytest.mark.parametrize("way", WAYS)
def test_log_probabilities_of_prompts_however_they_are_scheduled(
    folder: str, scored_plainly: list[list[float]], way: str
) -> None:
    assert [len(own) for own in scored_plainly] == [len(prompt) - 1 for prompt in PROMPTS]
    got = prompt_logprobs(OfflineEngine(folder, build, **{**PLAIN, **WAYS[way]}))
    for prompt, own, expected in zip(PROMPTS, got, scored_plainly, strict=True):
        assert own == pytest.approx(expected, abs=1e-4), f"of {prompt}"


def test_without_memory_for_a_step_its_requests_fail_and_the_engine_goes_on(folder: str) -> None:
    llm = OfflineEngine(folder, build, **PLAIN)
    before = tokens(llm, temperature=0.0)
    free, _ = torch.cuda.mem_get_info()
    torch.cuda.empty_cache()
    hog = [torch.empty(free - (64 << 20), dtype=torch.uint8, device="cuda")]
    params = SamplingParams(max_tokens=4, temperature=0.5, top_p=0.5, ignore_eos=True)
    engine: Any = llm._engine  # pyright: ignore[reportPrivateUsage]
    engine._runner._sampler.sample = hungry(engine._runner._sampler.sample)
    told = llm.generate(PROMPTS[:1], params, progress=False)
    assert told[0].outputs[0].finish_reason == "error"
    assert "memory" in str(told[0].error)
    hog.clear()
    torch.cuda.empty_cache()
    assert tokens(llm, temperature=0.0) == before


def hungry(sample: Any) -> Any:
    """Sampling that needs more memory than is left."""

    def more(*arguments: Any) -> Any:
        room = torch.empty(8 << 30, dtype=torch.uint8, device="cuda")
        found = sample(*arguments)
        del room
        return found

    return more


def test_the_memory_that_is_left_is_for_kv() -> None:
    llm = OfflineEngine(
        "qwen3-0.6b",
        build,
        load_format="dummy",
        device="cuda",
        max_model_len=4096,
        max_num_seqs=16,
        gpu_memory_utilization=0.3,
        kv_cache_dtype="fp8",
    )
    _, total = torch.cuda.mem_get_info()
    assert torch.cuda.memory_reserved() < 0.3 * total
    params = SamplingParams(max_tokens=16, temperature=0.0, ignore_eos=True)
    told = llm.generate([list(range(700)), [5, 6]], params, progress=False)
    assert [len(one.outputs[0].token_ids) for one in told] == [16, 16]
