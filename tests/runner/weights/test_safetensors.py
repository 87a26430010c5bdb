import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from paceline.core.errors import ConfigError
from paceline.runner.models.tensor_spec import Cut
from paceline.runner.weights.checkpoint import part_of, verify
from paceline.runner.weights.dummy import Dummy
from paceline.runner.weights.safetensors import INDEX, SINGLE, SafetensorsFolder
from tests.runner.support import TINY, tiny


@pytest.fixture
def tensors() -> dict[str, torch.Tensor]:
    dummy = Dummy(tiny())
    return {name: dummy.read(name) for name in dummy.shapes}


@pytest.fixture
def folder(tmp_path: Path, tensors: dict[str, torch.Tensor]) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    save_file(tensors, tmp_path / SINGLE)
    return tmp_path


def split(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    """The same tensors in two files with an index, as large models have them."""
    (folder / SINGLE).unlink()
    files = {name: f"part{len(name) % 2}.safetensors" for name in tensors}
    for file in set(files.values()):
        save_file({name: tensors[name] for name in tensors if files[name] == file}, folder / file)
    (folder / INDEX).write_text(json.dumps({"weight_map": files}))


def test_one_file(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    found = SafetensorsFolder(folder)
    verify(found)
    assert found.config == tiny()
    assert all(torch.equal(found.read(name), tensor) for name, tensor in tensors.items())


@pytest.mark.parametrize("cut", [Cut(0, ((4, 8), (16, 24)), 24), Cut(1, ((2, 7),), 8)])
def test_parts_of_a_tensor(folder: Path, tensors: dict[str, torch.Tensor], cut: Cut) -> None:
    name = "model.layers.0.self_attn.q_proj.weight"
    found = SafetensorsFolder(folder).read_part(name, cut)
    assert torch.equal(found, part_of(tensors[name], cut))


def test_many_files(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    split(folder, tensors)
    save_file({"stray": torch.zeros(1)}, folder / "consolidated.safetensors")
    found = SafetensorsFolder(folder)
    verify(found)
    assert all(torch.equal(found.read(name), tensor) for name, tensor in tensors.items())


def test_a_file_that_is_missing_is_named(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    split(folder, tensors)
    (folder / "part1.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"part1\.safetensors cannot be read"):
        SafetensorsFolder(folder)


def test_a_tensor_in_two_files_is_named(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    split(folder, tensors)
    save_file(tensors, folder / "part1.safetensors")
    with pytest.raises(ConfigError, match=r"repeats tensor '.*' of another file"):
        SafetensorsFolder(folder)


def test_files_that_are_damaged_or_absent(folder: Path) -> None:
    (folder / SINGLE).write_bytes(b"\xff" * 40)
    with pytest.raises(ConfigError, match=r"model\.safetensors cannot be read"):
        SafetensorsFolder(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"config\.json is not complete"):
        SafetensorsFolder(folder)
    (folder / "config.json").write_text("[]")
    with pytest.raises(ConfigError, match=r"config\.json is not a JSON object"):
        SafetensorsFolder(folder)
    (folder / "config.json").write_text(json.dumps(TINY))
    (folder / INDEX).write_text("{}")
    with pytest.raises(ConfigError, match="has no weight_map"):
        SafetensorsFolder(folder)


def test_the_generation_config_knows_more_ends(folder: Path) -> None:
    assert SafetensorsFolder(folder).config.eos == (2,)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 9]}))
    assert SafetensorsFolder(folder).config.eos == (2, 9)


def test_derived_tensors_of_old_files_are_passed_over(
    folder: Path, tensors: dict[str, torch.Tensor]
) -> None:
    extra = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(4)}
    save_file({**tensors, **extra}, folder / SINGLE)
    verify(SafetensorsFolder(folder))


def test_a_head_that_is_the_embedding_again_is_passed_over(folder: Path) -> None:
    tied = {**TINY, "tie_word_embeddings": True}
    (folder / "config.json").write_text(json.dumps(tied))
    found = SafetensorsFolder(folder)
    verify(found)
    assert "lm_head.weight" not in found.shapes
