"""Kernels of latent attention compile for an H200, without one."""

from types import SimpleNamespace
from typing import Any, cast

import torch

from paceline.runner.cuda.kernels.attention.latent_heads import LatentRotation
from paceline.runner.kv_store import KVStore

RANK, ROPE_DIM, HEADS, KEY_DIM = 32, 8, 4, 16


def test_kernels_compile_for_an_h200(compiled: dict[str, Any]) -> None:
    table = torch.zeros(64, 2, ROPE_DIM // 2)
    rotation = LatentRotation(table, torch.ones(RANK), 1e-5)
    position = torch.zeros(3, dtype=torch.int32)
    content = torch.zeros(16, 1, RANK + ROPE_DIM, dtype=torch.bfloat16)
    kv = cast("KVStore", SimpleNamespace(content=content, groups=SimpleNamespace(index=[0])))
    new = torch.zeros(3, RANK + ROPE_DIM, dtype=torch.bfloat16)
    rotation.store(new, position, position.long(), kv, 0)
    query = torch.zeros(3, HEADS, KEY_DIM + ROPE_DIM, dtype=torch.bfloat16)
    rotation.rotate_into(query.new_zeros(3, HEADS, RANK + ROPE_DIM), query, position)
    assert set(compiled) == {"_store", "_rotate"}
