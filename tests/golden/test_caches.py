"""Models whose layers have windows, or keep latent rows or states, through `LLM`, against
transformers: blocks that a window has passed go back to the pool, and other sequences take them."""

from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest

from paceline import LLM
from paceline.core.settings.config import CacheConfig, StepConfig
from paceline.core.settings.load import LoadConfig
from paceline.runner.weights.files import open_checkpoint
from paceline.wiring.memory import attention_groups, kv_groups, tables_of_one
from tests.conformance.architectures import Case, tokens_of
from tests.golden.small_model import small_model
from tests.golden.support import is_greedy, made

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
QUIET_S = 1.0
FOR_SNAPSHOTS = 20  # blocks
WAYS: dict[str, dict[str, Any]] = {
    "plainly": {},
    "drafted": {"num_speculative_tokens": 3, "speculation": "fixed"},
    "swapped": {"swap_space": 0.001, "preemption_mode": "swap"},
    "hosted": {"kv_connector": "host"},
}
CASES = [  # windows are of 7 positions
    (Case("gemma2"), "plainly"),
    (Case("gemma3"), "swapped"),
    # layers without a window have other heads, and some read what others keep
    (Case("gemma4", "small"), "plainly"),
    (Case("gemma3"), "hosted"),
    (Case("gptoss"), "plainly"),
    (Case("mistral"), "drafted"),
    (Case("deepseekv3"), "plainly"),  # latent rows
    (Case("deepseekv3"), "drafted"),
    (Case("qwen3_5"), "swapped"),  # states
    (Case("qwen3_5"), "hosted"),
]


def fewest_blocks(folder: Path) -> int:
    """With which a prompt can be continued twice at once, and with a few snapshots of states."""
    config = open_checkpoint(folder).config
    groups = attention_groups(kv_groups(config, LoadConfig(), 64))
    cache, step = CacheConfig(block_size=4, attention_groups=groups), StepConfig(**STEP)
    length = max(map(len, PROMPTS[:3])) + TOKENS
    room = FOR_SNAPSHOTS if config.states is not None else 0
    return room + tables_of_one(cache, step).most_blocks(length, 2, len(SHARED))


def continued(llm: LLM, prompts: list[list[int]], **fields: Any) -> list[list[list[int]]]:
    outputs = llm.generate(
        prompts, max_tokens=TOKENS, temperature=0, ignore_eos=True, progress=False, **fields
    )
    return [[list(one.token_ids) for one in output.outputs] for output in outputs]


@pytest.mark.parametrize(("case", "way"), CASES, ids=str)
def test_tokens_are_those_of_transformers(case: Case, way: str, tmp_path: Path) -> None:
    """In chunks, with steps in flight, preempted, with hits of what came before, forked, and loaded
    after the device has evicted it."""
    folder = small_model(tmp_path, case)
    blocks = fewest_blocks(folder)
    settings = {**STEP, **WAYS[way], "block_size": 4, "depth": 2, "policy": "fcfs"}
    with LLM(str(folder), device="cpu", num_gpu_blocks_override=blocks, **settings) as llm:
        alone = continued(llm, PROMPTS)
        forked = continued(llm, PROMPTS[:3], n=2)
        counted = llm.get_metrics().counters
    theirs = made(case)
    for prompt, (found,) in zip(PROMPTS, alone, strict=True):
        assert is_greedy(theirs, prompt, found, TOKENS)
    assert forked == [one * 2 for one in alone[:3]]
    assert counted["num_preemptions"]
    assert counted["prefix_cache_hits"]
    assert bool(counted["external_prefix_cache_hits"]) == (way == "hosted")


def wait_for_files(folder: Path, least: int) -> None:
    """Until a second has added no file. An engine that ends drops what it has not written, and how
    many snapshots it writes beside those at the ends of prompts is its policy's decision."""
    count, since = 0, monotonic()
    while count < least or monotonic() - since < QUIET_S:
        sleep(0.02)
        if (now := len(list(folder.rglob("*.kv")))) != count:
            count, since = now, monotonic()


def test_a_decode_engine_goes_on_from_the_state_of_a_prefill_engine(tmp_path: Path) -> None:
    """Through files: the state is that before the last token of a prompt, which is computed to
    sample from it."""
    case = Case("lfm2")
    folder = small_model(tmp_path, case)

    def engine(role: str) -> LLM:
        options = {"path": str(tmp_path / "kv")}
        config = {"kv_connector": "disk", "kv_role": role, "kv_connector_extra_config": options}
        return LLM(str(folder), device="cpu", block_size=4, kv_transfer_config=config, **STEP)

    whole = {tuple(one[:end]) for one in PROMPTS for end in range(4, len(one) + 1, 4)}
    with engine("kv_producer") as prefill:
        prefill.generate(PROMPTS, max_tokens=1, temperature=0, progress=False)
        wait_for_files(tmp_path / "kv", len(whole) + len(PROMPTS))
    with engine("kv_consumer") as decode:
        found = continued(decode, PROMPTS)
        counted = decode.get_metrics().counters
    theirs = made(case)
    for prompt, (tokens,) in zip(PROMPTS, found, strict=True):
        assert is_greedy(theirs, prompt, tokens, TOKENS)
    assert counted["prefix_cache_hits"] + counted["external_prefix_cache_hits"] == sum(
        len(prompt) - 1 for prompt in PROMPTS
    )
