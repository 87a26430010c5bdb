"""Nothing is built after the start: no kernel is compiled, no CUDA graph captured."""

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from paceline.runner.models.config import ModelConfig
from tests.golden.image_sizes import GEMMA, IDS
from tests.gpu.cold_start import started_cold
from tests.gpu.support import ON_GPU
from tests.runner.adapters.support import write_adapter

pytestmark = ON_GPU

LENGTHS = {"max_model_len": 4096, "num_gpu_blocks_override": 16384}
TIGHT = {"max_num_seqs": 64, "num_gpu_blocks_override": 700, "watermark": 0.0}
WAYS: dict[str, dict[str, Any]] = {
    "plainly": {},
    "in int4": {"quantization": "int4"},
    "drafted": {"num_speculative_tokens": 3},
    "swapped": {**TIGHT, "preemption_mode": "swap", "swap_space": 1.0},
}


@pytest.fixture(scope="module")
def few_layers(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The shape of a real model, whose kernels are all different, with two layers."""
    shape = json.loads((files("paceline.runner.models") / "shapes/qwen3-0.6b.json").read_text())
    folder = Path(tmp_path_factory.mktemp("few"))
    (folder / "config.json").write_text(json.dumps({**shape, "num_hidden_layers": 2}))
    return str(folder)


@pytest.mark.parametrize("way", WAYS)
def test_requests_of_every_kind_build_nothing(few_layers: str, way: str) -> None:
    found = started_cold(few_layers, **(LENGTHS | WAYS[way]))
    assert found["at_start"]["a CUDA graph"] > 0
    assert found["late"] == {}
    assert (found["swapped_in_blocks"] > 0) == (way == "swapped")


@pytest.mark.parametrize("way", ["plainly", "drafted"])
def test_requests_with_adapters_build_nothing(few_layers: str, way: str, tmp_path: Path) -> None:
    config = ModelConfig.of_hf(json.loads((Path(few_layers) / "config.json").read_text()))
    folders = [str(write_adapter(tmp_path / name, config, r=8)) for name in "xyz"]
    lora = {"enable_lora": True, "max_loras": 2, "adapters": folders}
    found = started_cold(few_layers, **(LENGTHS | WAYS[way]), **lora)
    assert found["late"] == {}


def test_requests_with_images_that_are_read_whole_build_nothing(tmp_path: Path) -> None:
    """In layers with windows and without; as in real models, sizes are multiples of 16."""
    pytest.importorskip("PIL")
    sizes = {"hidden_size": 64, "head_dim": 32, "intermediate_size": 128, "vocab_size": 512}
    text = {**GEMMA["text_config"], **sizes, "max_position_embeddings": 4096}
    kind = {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3"}
    config = {**GEMMA, **kind, "text_config": text}
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = started_cold(str(tmp_path), **LENGTHS, image_mark=IDS["<start_of_image>"])
    assert found["late"] == {}


def test_an_eager_start_captures_no_graph(few_layers: str) -> None:
    found = started_cold(few_layers, **LENGTHS, enforce_eager=True)
    assert "a CUDA graph" not in found["at_start"]
    assert not any("a CUDA graph" in late for late in found["late"].values())
