"""A real model's greedy tokens, on a GPU as on the CPU.

`PACELINE_GPU_MODEL` is the path of a .gguf file: the embedded one, or its first layers where the
whole does not travel.
"""

import os

import pytest

from paceline.engine.api import SamplingParams
from paceline.engine.offline.offline import OfflineEngine
from paceline.wiring.assembly import build
from tests.gpu.support import ON_GPU

MODEL = os.environ.get("PACELINE_GPU_MODEL", "")

pytestmark = [
    *ON_GPU,
    pytest.mark.skipif(not MODEL, reason="PACELINE_GPU_MODEL names no model"),
]

PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a village by the sea, there lived",
    "def fibonacci(n):",
    "1, 2, 3, 4,",
]


def test_greedy_tokens_are_those_of_the_cpu() -> None:
    params = SamplingParams(temperature=0.0, max_tokens=48, ignore_eos=True)
    settings = {"max_model_len": 512, "max_num_seqs": 4, "num_gpu_blocks_override": 128}
    got = {}
    for device, how in (
        ("cpu", {"weights": "float32"}),
        ("cuda", {"dtype": "float32"}),
        ("cuda", {"dtype": "bfloat16"}),
    ):
        llm = OfflineEngine(MODEL, build, device=device, **how, **settings)
        told = llm.generate(PROMPTS, params, progress=False)
        got[device, *how.values()] = [one.outputs[0].token_ids for one in told]
    assert got["cuda", "float32"] == got["cpu", "float32"]
    pairs = zip(got["cuda", "bfloat16"], got["cpu", "float32"], strict=True)
    assert all(one[:2] == other[:2] for one, other in pairs)
