"""Two ranks on one GPU: gloo, and no graphs. The tokens are those of one process."""

import json
from pathlib import Path
from typing import Any

import pytest

from paceline.engine.api import SamplingParams
from paceline.engine.offline import OfflineEngine
from paceline.wiring.assembly import build
from tests.conformance.architectures import SIZES
from tests.gpu.support import ON_GPU
from tests.gpu.test_engine import PLAIN, PROMPTS, SWAP

pytestmark = ON_GPU
SAMPLINGS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.8, "seed": 5},
    {"temperature": 0.8, "seed": 5, "top_p": 0.9, "presence_penalty": 0.3},
]
MODELS: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": {},
    "Gemma3ForCausalLM": {},
    "Qwen3MoeForCausalLM": {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
    },
}


@pytest.mark.parametrize("architecture", MODELS)
def test_two_ranks_have_the_tokens_of_one_process(architecture: str, tmp_path: Path) -> None:
    """Through preemption, swapping, chunks, prefix hits and two steps in flight."""
    sizes = {**SIZES, "vocab_size": 102, "intermediate_size": 64}
    described = {"architectures": [architecture], **sizes, **MODELS[architecture]}
    (tmp_path / "config.json").write_text(json.dumps(described))
    found: list[list[Any]] = []
    for changes in ({"enforce_eager": True}, {**SWAP, "tensor_parallel_size": 2}):
        with OfflineEngine(str(tmp_path), build, **{**PLAIN, **changes}) as llm:
            found.append([])
            for sampling in SAMPLINGS:
                params = SamplingParams(max_tokens=12, ignore_eos=True, **sampling)
                outputs = llm.generate(PROMPTS, params, progress=False, raise_on_error=True)
                found[-1] += [one.outputs[0].token_ids for one in outputs]
    assert found[1] == found[0]
