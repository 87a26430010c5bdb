"""Kernels of layers with states compile for an H200, without one."""

from dataclasses import replace
from typing import Any

import torch

from benchmarks import gpu_states
from paceline.runner.cuda.states.drafted import advance_accepted, step_with_drafts
from paceline.runner.cuda.states.recurrence import RecurrenceSizes
from paceline.runner.state_store import StateStore

SMALL = RecurrenceSizes(2, 2, 16, 16, 0, 16, 32, 98, 96, corrects=True)
BY_KEY = RecurrenceSizes(2, 1, 16, 16, 0, 32, 64, 130, 128, corrects=True, by_key=True)


def test_kernels_compile_for_an_h200(compiled: dict[str, Any]) -> None:
    for sizes in (SMALL, BY_KEY):
        layer = gpu_states.Layer(sizes, "cpu")
        store = StateStore(layer.layout, 2, gpu_states.DTYPE, "cpu")
        store.keep_drafts(3)
        rows = layer.rows(store, 0, [70, 1], longer=2)
        inputs = layer.drawn(71, layer.inputs)
        with torch.inference_mode():
            layer.prompt(inputs, rows)["recurrence"]()
            if sizes is SMALL:
                layer.decode(inputs, rows)
                continue
            drafted = replace(rows, drafts=torch.zeros_like(rows.slot))
            how = layer.convolution, sizes, layer.decay
            stores: list[int] = []
            for each in (drafted, rows):
                step_with_drafts(inputs, each, 0, *how, inputs[:, : 2 * 16].contiguous())
                stores.append(compiled["_step_with_drafts"].asm["ptx"].count("st.global"))
            assert stores[0] > stores[1], "without drafts nothing is read or kept of them"
            advance_accepted(store, rows.slot, rows.slot, rows.slot, rows.slot)
    assert len(compiled) == 12
    assert "wgmma" in compiled["_invert"].asm["ptx"]
