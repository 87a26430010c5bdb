"""Kernels of layers with states compile for an H200, without one."""

from typing import Any

import torch

from benchmarks import gpu_states
from paceline.runner.cuda.states.recurrence import RecurrenceSizes
from paceline.runner.state_store import StateStore

SMALL = RecurrenceSizes(2, 2, 16, 16, 0, 16, 32, 98, 96, corrects=True)


def test_kernels_compile_for_an_h200(compiled: dict[str, Any]) -> None:
    layer = gpu_states.Layer(SMALL, "cpu")
    store = StateStore(layer.layout, 2, gpu_states.DTYPE, "cpu")
    rows = layer.rows(store, 0, [70, 1], longer=2)
    inputs = layer.drawn(71, layer.inputs)
    with torch.inference_mode():
        layer.decode(inputs, rows)
        layer.prompt(inputs, rows)["recurrence"]()
    assert len(compiled) == 8
    assert "wgmma" in compiled["_invert"].asm["ptx"]
