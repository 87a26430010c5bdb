"""Quantized checkpoints are what transformers and compressed-tensors read them as."""

import json
from pathlib import Path

import pytest
import torch

from paceline.runner.models.model import Model
from paceline.runner.weights.safetensors import SafetensorsFolder
from tests.golden.support import their_logits
from tests.runner.sequences import OnCPU, logits_of
from tests.runner.weights.quantized_checkpoints import KINDS, Kind, by_block, write_both

TOKENS = [5, 9, 2, 7, 1, 1, 3, 60, 50, 51, 52]
# Others guess the blocks of fp8 from shapes, so these must divide the weights.
BLOCKS = Kind(
    {"quant_method": "fp8", "weight_block_size": [16, 32]},
    by_block("weight_scale_inv", 16, 32),
)
REMOVED = "compressed int4 with act order"  # newer versions do not read it
READABLE = {"fp8 by blocks": BLOCKS} | {
    name: kind for name, kind in KINDS.items() if name.startswith("compressed") and name != REMOVED
}
BF16 = ("compressed int8", "compressed int8 and inputs", "compressed nvfp4")
BOUNDS = dict.fromkeys(BF16, 0.05)  # they decode these in bf16


@pytest.mark.parametrize("name", READABLE)
def test_logits(name: str, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    folder, _ = write_both(READABLE[name], tmp_path)
    ours = logits_of(OnCPU(Model.load(SafetensorsFolder(folder)), "paged"), TOKENS)
    path = folder / "config.json"
    config = json.loads(path.read_text()) | {"model_type": "llama"}
    config["quantization_config"] |= {"quantization_status": "compressed", "dequantize": True}
    path.write_text(json.dumps(config))
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    due = their_logits(theirs, TOKENS)
    assert (ours - due).abs().max() < BOUNDS.get(name, 1e-4)
    assert ours.argmax(dim=1).equal(due.argmax(dim=1))
