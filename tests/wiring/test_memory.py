"""How much memory is free, and the groups of layers that KV is sized for."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paceline.core.settings.config import CacheConfig, StepConfig
from paceline.core.settings.features import AttentionGroup
from paceline.core.settings.load import LoadConfig
from paceline.runner.models.config import ModelConfig
from paceline.runner.models.layer_groups import LayerGroups, one_group
from paceline.wiring.memory import (
    attention_groups,
    free_bytes,
    kv_groups,
    longest_within,
    tables_of_one,
)
from paceline.wiring.settings import Hardware, block_bytes, resolve
from tests.runner.support import tiny

MIB = 1 << 20


def machine(folder: Path, free: int = 900 * MIB) -> Path:
    path = folder / "meminfo"
    path.write_text(f"MemTotal: 2000000 kB\nMemFree: 3 kB\nMemAvailable: {free // 1024} kB\n")
    return path


def container(folder: Path, limit: str, used: int = 300 * MIB, kept: int = 100 * MIB) -> Path:
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 7\ninactive_file {kept}\n")
    return folder


def test_what_a_machine_can_give(tmp_path: Path) -> None:
    assert free_bytes(machine(tmp_path), tmp_path / "no group") == 900 * MIB


@pytest.mark.parametrize(
    ("limit", "free"),
    [("max", 900 * MIB), (str(500 * MIB), 300 * MIB), (str(9000 * MIB), 900 * MIB), ("1", 0)],
)
def test_a_container_may_give_less(tmp_path: Path, limit: str, free: int) -> None:
    assert free_bytes(machine(tmp_path), container(tmp_path, limit)) == free


def test_a_container_that_does_not_tell_all_is_none(tmp_path: Path) -> None:
    group = container(tmp_path, str(500 * MIB))
    (group / "memory.stat").write_text("anon 7\n")
    assert free_bytes(machine(tmp_path), group) == 900 * MIB


def test_containers_of_old_systems_have_other_files(tmp_path: Path) -> None:
    folder = tmp_path / "memory"
    folder.mkdir()
    (folder / "memory.limit_in_bytes").write_text(f"{500 * MIB}\n")
    (folder / "memory.usage_in_bytes").write_text(f"{300 * MIB}\n")
    (folder / "memory.stat").write_text(f"inactive_file 1\ntotal_inactive_file {100 * MIB}\n")
    assert free_bytes(machine(tmp_path), tmp_path) == 300 * MIB


def test_a_machine_that_does_not_tell_has_half_of_what_it_is_built_with(tmp_path: Path) -> None:
    assert free_bytes(tmp_path / "nothing", tmp_path) > 0


def test_this_machine_has_some() -> None:
    assert free_bytes() > 0


LENGTH = 32_768
PLAIN = LoadConfig()
STEP = StepConfig(max_model_len=LENGTH, max_num_batched_tokens=2048)


def gemma3(**changes: Any) -> ModelConfig:
    """The layers of the 1B model, each of which is small."""
    shape = {"num_hidden_layers": 26, "sliding_window": 512, "max_position_embeddings": LENGTH}
    return tiny(architectures=["Gemma3ForCausalLM"], **{**shape, **changes})


def most_bytes(model: ModelConfig, groups: LayerGroups, step: StepConfig = STEP) -> int:
    """Of the KV of one long sequence."""
    cache = CacheConfig(attention_groups=attention_groups(groups))
    blocks = tables_of_one(cache, step).most_blocks(LENGTH)
    return blocks * block_bytes(model, cache.block_size, groups=groups)


def test_groups_are_listed_in_the_order_of_their_numbers() -> None:
    groups = kv_groups(gemma3(), PLAIN, LENGTH)
    found = attention_groups(groups)
    assert found == (AttentionGroup(count=1), AttentionGroup("sliding_window", 512, 6))
    numbered = CacheConfig(attention_groups=found).groups
    assert [one.window or None for one in numbered] == list(groups.windows)


@pytest.mark.parametrize("layers", [26, 34, 48, 62])
def test_gemma_3_needs_a_third_of_the_memory_at_most(layers: int) -> None:
    """At 32k positions, in any of its sizes; a chunk of a prompt is computed beside."""
    model = gemma3(num_hidden_layers=layers, sliding_window=1024)
    whole, groups = most_bytes(model, one_group([None] * layers)), kv_groups(model, PLAIN, LENGTH)
    assert 3 * most_bytes(model, groups) < whole
    large = replace(STEP, max_num_batched_tokens=8192)
    assert 3 * most_bytes(model, groups, large) > whole
    short_rows = replace(large, long_prefill_token_threshold=2048)
    assert 3 * most_bytes(model, groups, short_rows) < whole


def test_drafters_with_kv_and_some_connectors_need_every_position() -> None:
    assert kv_groups(gemma3(), PLAIN, LENGTH, drafter_bytes=64) == one_group([None] * 26)
    assert kv_groups(gemma3(), LoadConfig(kv_connector="nixl"), LENGTH) == one_group([None] * 26)
    for name in ("host", "disk", "valkey"):
        grouped = kv_groups(gemma3(), LoadConfig(kv_connector=name), LENGTH)
        assert grouped == kv_groups(gemma3(), PLAIN, LENGTH)


def test_blocks_are_counted_for_all_groups() -> None:
    model = gemma3()
    each = block_bytes(model, 16, groups=kv_groups(model, PLAIN, LENGTH))
    assert each * 26 == 4 * block_bytes(model, 16)
    config = resolve({"max_num_seqs": 2}, LoadConfig(), model, Hardware(2**40))
    step = config.step
    tables = tables_of_one(config.cache, step)
    assert config.cache.num_blocks == 2 * tables.most_blocks(LENGTH)
    tight = resolve({}, LoadConfig(num_gpu_blocks_override=500), model, Hardware(2**40))
    length = tight.step.max_model_len
    assert tables.most_blocks(length) <= 500 < tables.most_blocks(length + 1)
    assert longest_within(tables, 500, LENGTH) == length


def test_a_window_that_no_sequence_outgrows_is_full_attention() -> None:
    assert kv_groups(gemma3(), PLAIN, 512) == one_group([None] * 26)
    assert len(kv_groups(gemma3(), PLAIN, 513)) > 1
    config = resolve({"max_model_len": 512}, LoadConfig(), gemma3(), Hardware(2**40))
    assert config.cache.attention_groups == (AttentionGroup(),)
