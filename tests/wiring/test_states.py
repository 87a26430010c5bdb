"""Settings of models whose layers keep states, and what is refused for them."""

import json
from pathlib import Path
from typing import Any

import pytest

from paceline.core.errors import ConfigError
from paceline.core.settings.load import LoadConfig
from paceline.hub.repository_files import silent
from paceline.runner.models.config import ModelConfig
from paceline.runner.weights.dummy import Dummy
from paceline.wiring.memory import kv_groups, state_bytes
from paceline.wiring.model import find_draft_weights
from paceline.wiring.settings import (
    CPU_DEFAULTS,
    Hardware,
    block_bytes,
    check,
    check_memory,
    resolve,
)
from tests.conformance.architectures import Case
from tests.runner.support import tiny

MODEL = Case("qwen3_5").config()
SETTINGS: dict[str, Any] = {"max_num_seqs": 4, "max_model_len": 64, "block_size": 4}


def checked(load: LoadConfig | None = None, **settings: Any) -> dict[str, Any]:
    return check({**SETTINGS, **settings}, load or LoadConfig(), MODEL, CPU_DEFAULTS)


def test_blocks_hold_the_layers_with_attention_alone() -> None:
    groups = kv_groups(MODEL, LoadConfig(), 64)
    assert (len(groups), groups.layers_per_block) == (1, 1)
    assert block_bytes(MODEL, 4) == 4 * MODEL.cell.values * 4


def test_a_state_takes_whole_blocks() -> None:
    size = block_bytes(MODEL, 4)
    blocks = checked()["state_blocks"]
    assert (blocks - 1) * size < state_bytes(MODEL) <= blocks * size
    assert check(SETTINGS, LoadConfig(), Case("llama").config(), CPU_DEFAULTS)["state_blocks"] == 0


def test_states_of_all_slots_are_set_aside() -> None:
    load, room = LoadConfig(), 200 * block_bytes(MODEL, 4)
    kept = resolve(SETTINGS, load, MODEL, Hardware(room))
    more = resolve({**SETTINGS, "max_num_seqs": 8}, load, MODEL, Hardware(room))
    assert more.cache.num_blocks < kept.cache.num_blocks
    with pytest.raises(ConfigError, match=r"max_num_seqs requests .* lower max_num_seqs"):
        check_memory(checked(), load, MODEL, 3 * state_bytes(MODEL))


@pytest.mark.parametrize(
    ("load", "settings", "message"),
    [
        ({"kv_connector": "nixl"}, {}, "kv_connector is 'nixl'.* use host, disk or valkey"),
    ],
)
def test_what_does_not_work_with_states(
    load: dict[str, Any], settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        checked(LoadConfig(**load), **settings)


@pytest.mark.parametrize("architecture", ["falconh1", "bamba"])
def test_gguf_files_are_refused(architecture: str) -> None:
    with pytest.raises(ConfigError, match="has layers with states, is not supported: use"):
        ModelConfig.of_gguf({"general.architecture": architecture})


def test_models_with_states_do_not_draft(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(Case("lfm2").entries))
    settings = {"proposer": "draft_model", "speculative_model": str(tmp_path)}
    load = LoadConfig(load_format="dummy")
    with pytest.raises(ConfigError, match=r"layers with states.* use another model"):
        find_draft_weights(
            {**settings, "num_speculative_tokens": 2}, load, "cpu", silent, Dummy(tiny())
        )
