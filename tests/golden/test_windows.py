"""Models whose layers have windows, through `LLM`, against transformers: blocks that a window has
passed go back to the pool, and other sequences take them."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from paceline import LLM
from paceline.core.settings.config import CacheConfig, StepConfig
from paceline.core.settings.load import LoadConfig
from paceline.runner.weights.files import open_checkpoint
from paceline.wiring.memory import attention_groups, kv_groups, tables_of_one
from tests.conformance.architectures import Case, tokens_of
from tests.golden.small_model import small_model
from tests.golden.support import made, their_greedy

STEP: dict[str, Any] = {
    "max_model_len": 64,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 12,  # less than a prompt
}
SHARED = tokens_of(24, seed=5)
PROMPTS = [[*SHARED, *tokens_of(number, seed=number)] for number in (3, 9, 1)] + [
    tokens_of(40, seed=6),
    tokens_of(5, seed=7),
]
TOKENS = 20
WAYS: dict[str, dict[str, Any]] = {
    "plainly": {},
    "drafted": {"num_speculative_tokens": 3, "speculation": "fixed"},
    "swapped": {"swap_space": 0.001, "preemption_mode": "swap"},
    "hosted": {"kv_connector": "host"},
}
CASES = [  # windows of 7 positions
    ("gemma2", "plainly"),
    ("gemma3", "swapped"),
    ("gemma4", "plainly"),  # layers without a window have other heads
    ("gemma3", "hosted"),
    ("gptoss", "plainly"),
    ("mistral", "drafted"),
]


@cache
def due(architecture: str) -> list[list[int]]:
    """What transformers continues the prompts with."""
    theirs = made(Case(architecture))
    return [their_greedy(theirs, prompt, TOKENS) for prompt in PROMPTS]


def fewest_blocks(folder: Path) -> int:
    """With which a prompt can be continued twice at once."""
    groups = attention_groups(kv_groups(open_checkpoint(folder).config, LoadConfig(), 64))
    cache, step = CacheConfig(block_size=4, attention_groups=groups), StepConfig(**STEP)
    length = max(map(len, PROMPTS[:3])) + TOKENS
    return tables_of_one(cache, step).most_blocks(length, 2, len(SHARED))


def continued(llm: LLM, prompts: list[list[int]], **fields: Any) -> list[list[list[int]]]:
    outputs = llm.generate(
        prompts, max_tokens=TOKENS, temperature=0, ignore_eos=True, progress=False, **fields
    )
    return [[list(one.token_ids) for one in output.outputs] for output in outputs]


@pytest.mark.parametrize(("architecture", "way"), CASES)
def test_tokens_are_those_of_transformers(architecture: str, way: str, tmp_path: Path) -> None:
    """In chunks, with steps in flight, preempted, with hits of what came before, forked, and loaded
    after the device has evicted it."""
    folder = small_model(tmp_path, Case(architecture))
    blocks = fewest_blocks(folder)
    settings = {**STEP, **WAYS[way], "block_size": 4, "depth": 2, "policy": "fcfs"}
    with LLM(str(folder), device="cpu", num_gpu_blocks_override=blocks, **settings) as llm:
        assert continued(llm, PROMPTS) == [[one] for one in due(architecture)]
        assert continued(llm, PROMPTS[:3], n=2) == [[one, one] for one in due(architecture)[:3]]
        counted = llm.get_metrics().counters
    assert counted["num_preemptions"]
    assert counted["prefix_cache_hits"]
    assert bool(counted["external_prefix_cache_hits"]) == (way == "hosted")
