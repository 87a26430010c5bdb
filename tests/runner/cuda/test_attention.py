"""Kernels of attention compile for an H200, without one, whatever a position sees."""

from dataclasses import replace
from typing import Any

import torch

from paceline.runner.attention.triton import Triton
from paceline.runner.attention_backend import Queries
from paceline.runner.chunked_attention import InChunks
from tests.runner.support import Rows, bounds_of, filled_store, rows_of, tiny

COUNTS: Rows = [(1, 9), (1, 30), (6, 6), (40, 90)]


def test_kernels_compile_for_an_h200(compiled: dict[str, Any]) -> None:
    """With windows, with chunks, which are windows below zero, and with ends of images."""
    batch, blocks = rows_of(COUNTS, 16)
    sizes = {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64}
    kv = filled_store(tiny(num_hidden_layers=2, **sizes), blocks, 16)
    kv.content = kv.content.bfloat16()
    query = torch.randn(batch.positions, 8, 64, dtype=torch.bfloat16)
    whole = replace(batch, ends=batch.position + 1)
    for given in (batch, whole):
        asked = Queries(8, torch.bfloat16, has_chunks=True)
        held = Triton().prepare_mixed_graph(given, kv, bounds_of(COUNTS), len(COUNTS), asked)
        held.lay_out()
        for attention, window in ((held, None), (held, 32), (InChunks(held), 32)):
            attention.attend(query, 1, window, 0.125)
    assert set(compiled) == {"tiles", "decode", "_list"}
    assert all("cubin" in one.asm for one in compiled.values())
