"""adapter_model.safetensors."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from paceline.core.errors import RequestError
from paceline.runner.adapters.targets import AdapterTargets
from paceline.runner.adapters.weights import FILE, read_adapter
from paceline.runner.models.model import Model
from paceline.runner.weights.dummy import Dummy
from tests.runner.adapters.support import PREFIX, write_adapter, write_config
from tests.runner.support import tiny

Q = "model.layers.1.self_attn.q_proj"


@pytest.fixture(scope="module")
def targets() -> AdapterTargets:
    return Model.load(Dummy(tiny(), seed=3)).targets


def refused(folder: Path, targets: AdapterTargets, problem: str, most_rank: int = 8) -> None:
    with pytest.raises(RequestError, match=problem):
        read_adapter(folder, targets, most_rank)


def changed(folder: Path, name: str, tensor: torch.Tensor | None) -> None:
    tensors = load_file(folder / FILE)
    if tensor is None:
        del tensors[name]
    else:
        tensors[name] = tensor
    save_file(tensors, folder / FILE)


def test_the_version_is_that_of_the_content(tmp_path: Path, targets: AdapterTargets) -> None:
    one, same, other, scaled = (
        read_adapter(write_adapter(tmp_path / name, tiny(), seed, lora_alpha=alpha), targets, 8)
        for name, seed, alpha in (("a", 1, 8), ("b", 1, 8), ("c", 2, 8), ("d", 1, 9))
    )
    assert one.version == same.version
    assert len({one.version, other.version, scaled.version}) == 3
    assert one.rank == 4


def test_old_files_name_the_adapter(tmp_path: Path, targets: AdapterTargets) -> None:
    folder = write_adapter(tmp_path, tiny(), 1)
    plain = read_adapter(folder, targets, 8)
    tensors = load_file(folder / FILE)
    save_file(
        {k.replace(".weight", ".default.weight"): v for k, v in tensors.items()}, folder / FILE
    )
    assert read_adapter(folder, targets, 8).sites.keys() == plain.sites.keys()


def test_a_rank_beyond_the_limit(tmp_path: Path, targets: AdapterTargets) -> None:
    folder = write_adapter(tmp_path, tiny(), r=16)
    refused(folder, targets, r"the rank of model.layers.[01]..* is 16; max_lora_rank is 8")


def test_weights_of_another_model(tmp_path: Path, targets: AdapterTargets) -> None:
    folder = write_adapter(tmp_path, tiny(hidden_size=32), target_modules=["k_proj"])
    refused(folder, targets, r"has shape \[4, 32\]; .* need \[4, 24\]")
    folder = write_adapter(tmp_path, tiny(num_hidden_layers=3))
    refused(folder, targets, r"adapts model.layers.2.mlp.down_proj.* and 4 more, which this model")


def test_tensors_that_are_missing_or_strange(tmp_path: Path, targets: AdapterTargets) -> None:
    folder = write_adapter(tmp_path, tiny())
    changed(folder, f"{PREFIX}{Q}.lora_B.weight", None)
    refused(folder, targets, f"has only one of lora_A and lora_B of {Q}")
    changed(folder, f"{PREFIX}{Q}.lora_A.weight", None)
    refused(folder, targets, f"has no weights for {Q}, which target_modules")
    changed(folder, f"{PREFIX}model.embed_tokens.lora_embedding_A", torch.zeros(4, 61))
    refused(folder, targets, "lora_embedding_A' is not one of a LoRA adapter")


def test_weights_that_are_no_numbers(tmp_path: Path, targets: AdapterTargets) -> None:
    """They would spoil rows of other adapters, whose products are computed in the same kernel."""
    folder = write_adapter(tmp_path, tiny())
    changed(folder, f"{PREFIX}{Q}.lora_B.weight", torch.full((32, 4), float("inf")))
    refused(folder, targets, f"the weights of {Q} are infinite or not numbers")


def test_modules_that_cannot_be_adapted(tmp_path: Path, targets: AdapterTargets) -> None:
    folder = write_adapter(tmp_path, tiny(), target_modules=["q_proj", "lm_head"])
    changed(folder, f"{PREFIX}lm_head.lora_A.weight", torch.zeros(4, 24))
    refused(folder, targets, r"adapts lm_head, .* cannot adapt; it can adapt self_attn.q_proj")


def test_weights_that_the_configuration_does_not_name(
    tmp_path: Path, targets: AdapterTargets
) -> None:
    folder = write_adapter(tmp_path, tiny())
    write_config(folder, target_modules=["q_proj"])
    refused(folder, targets, "which target_modules of adapter_config.json does not name")


def test_files_that_are_missing_or_broken(tmp_path: Path, targets: AdapterTargets) -> None:
    write_config(tmp_path)
    refused(tmp_path, targets, "has no adapter_model.safetensors$")
    (tmp_path / "adapter_model.bin").touch()
    refused(tmp_path, targets, "convert adapter_model.bin to safetensors")
    (tmp_path / FILE).write_bytes(b"nothing")
    refused(tmp_path, targets, "cannot be read")
    save_file({}, tmp_path / FILE)
    refused(tmp_path, targets, "has no tensors")
