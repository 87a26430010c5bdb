"""Tensors of safetensors files, read without torch."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from paceline import ConfigError
from paceline.text.pooling_files import stored_tensor

VALUES = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_each_type(tmp_path: Path, dtype: torch.dtype) -> None:
    kept = VALUES.to(dtype)
    save_file({"a": torch.ones(3), "b": kept}, tmp_path / "model.safetensors")
    np.testing.assert_array_equal(stored_tensor(tmp_path, ("c", "b")), kept.float())
    np.testing.assert_array_equal(stored_tensor(tmp_path, ("b",), (4, 1)), kept.float()[[4, 1]])


def test_several_files(tmp_path: Path) -> None:
    for name in ("a", "b"):
        save_file({name: VALUES}, tmp_path / f"{name}.safetensors")
    where = {"weight_map": {"a": "a.safetensors", "b": "b.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(where))
    np.testing.assert_array_equal(stored_tensor(tmp_path, ("b",)), VALUES)


def test_what_is_missing_or_damaged_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no tensor a or b"):
        stored_tensor(tmp_path, ("a", "b"))
    file = tmp_path / "model.safetensors"
    save_file({"a": VALUES, "b": VALUES.long()}, file)
    with pytest.raises(ConfigError, match="type I64"):
        stored_tensor(tmp_path, ("b",))
    file.write_bytes(file.read_bytes()[:150])
    with pytest.raises(ConfigError, match=r"model\.safetensors"):
        stored_tensor(tmp_path, ("a",))
