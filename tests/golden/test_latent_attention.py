"""Latent attention through `LLM`, against transformers: chunks, preemption, hits and forks."""

from pathlib import Path

import pytest

from paceline import LLM
from tests.conformance.architectures import Case
from tests.golden.small_model import small_model
from tests.golden.test_windows import PROMPTS, STEP, continued, due, fewest_blocks

WAYS = {"plainly": {}, "drafted": {"num_speculative_tokens": 3, "speculation": "fixed"}}


@pytest.mark.parametrize("way", WAYS)
def test_tokens_are_those_of_transformers(way: str, tmp_path: Path) -> None:
    case = Case("deepseekv3")
    folder, expected = small_model(tmp_path, case), due(case)
    settings = {**STEP, **WAYS[way], "block_size": 4, "depth": 2, "policy": "fcfs"}
    blocks = fewest_blocks(folder)
    with LLM(str(folder), device="cpu", num_gpu_blocks_override=blocks, **settings) as llm:
        assert continued(llm, PROMPTS) == [[one] for one in expected]
        assert continued(llm, PROMPTS[:3], n=2) == [[one, one] for one in expected[:3]]
        counted = llm.get_metrics().counters
    assert counted["num_preemptions"]
    assert counted["prefix_cache_hits"]
