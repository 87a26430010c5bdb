"""Two ranks on one GPU: gloo, and no graphs. The tokens are those of one process."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline import Request
from paceline.core.settings.load import LoadConfig
from paceline.engine.api import SamplingParams
from paceline.engine.offline.offline import OfflineEngine
from paceline.images.processor import image_input
from paceline.runner.models.config import ModelConfig
from paceline.wiring.assembly import build
from paceline.wiring.device import ModelLoad, device_named
from paceline.wiring.model import find_checkpoint, find_draft_weights
from paceline.wiring.ranks.ranked_runner import assemble_ranks
from tests.conformance.architectures import SIZES, Case
from tests.gpu.support import ON_GPU
from tests.gpu.test_engine import PLAIN, PROMPTS, SWAP
from tests.runner.driving import drive
from tests.runner.eagle3 import head_folder
from tests.wiring.assembled import assembled

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
SQUARE = 28  # pixels along each side of what becomes one embedding of an image
FITTING = {"vocab_size": 102, "intermediate_size": 64}  # two ranks can share it


def described(folder: Path, architecture: str) -> dict[str, Any]:
    """Describe a small model in a folder."""
    entries = {"architectures": [architecture], **SIZES, **FITTING, **MODELS[architecture]}
    (folder / "config.json").write_text(json.dumps(entries))
    return entries


def tokens(folder: Path, **changes: Any) -> tuple[list[Any], dict[str, float]]:
    """What prompts get under each sampling, and the counters."""
    with OfflineEngine(str(folder), build, **{**PLAIN, **changes}) as llm:
        found: list[Any] = []
        for sampling in SAMPLINGS:
            params = SamplingParams(max_tokens=12, ignore_eos=True, **sampling)
            outputs = llm.generate(PROMPTS, params, progress=False, raise_on_error=True)
            found += [one.outputs[0].token_ids for one in outputs]
        return found, llm.get_metrics().counters


@pytest.mark.parametrize("architecture", MODELS)
def test_two_ranks_have_the_tokens_of_one_process(architecture: str, tmp_path: Path) -> None:
    """Through preemption, swapping, chunks, prefix hits and two steps in flight."""
    described(tmp_path, architecture)
    due, _ = tokens(tmp_path, enforce_eager=True)
    assert tokens(tmp_path, **SWAP, tensor_parallel_size=2)[0] == due


def test_rank_0_drafts_for_all(tmp_path: Path) -> None:
    """With three steps in flight: behind drafts, no rank knows where its rows begin."""
    entries = described(tmp_path, "LlamaForCausalLM")
    head = head_folder(tmp_path / "head", ModelConfig.of_hf(entries))
    due, _ = tokens(tmp_path, enforce_eager=True)
    settings = {**SWAP, "tensor_parallel_size": 2, "depth": 3, "speculation": "fixed"}
    for method in (
        {"method": "ngram"},
        {"method": "suffix"},
        {"method": "draft_model", "model": str(tmp_path)},
        {"method": "eagle3", "model": str(head)},
    ):
        drafting = {**method, "num_speculative_tokens": 3}
        got, counters = tokens(tmp_path, **settings, speculative_config=drafting)
        assert got == due, method
        assert counters["spec_decode_num_draft_tokens"], method
        if method["method"] == "draft_model":  # for itself
            assert counters["spec_decode_num_accepted_tokens"]


def test_rank_0_encodes_images_for_all(tmp_path: Path) -> None:
    """A head without an embedding of its own drafts, on ranks alone."""
    entries = Case("qwen2_5_vl").entries
    entries["text_config"] |= FITTING
    (tmp_path / "config.json").write_text(json.dumps(entries))
    model, random, side = str(tmp_path), np.random.default_rng(3), 2 * SQUARE
    images = [random.integers(0, 256, (side, side, 3), np.uint8) for _ in range(2)]
    asked = [
        Request(f"r{at}", [7, *[9] * 4, 30 + at], 9, images=(image_input(images[at % 2], 1, 4),))  # pyright: ignore[reportArgumentType]
        for at in range(3)
    ]
    checkpoint, _ = find_checkpoint(model, LoadConfig(load_format="dummy"), "cuda", lambda *_: None)
    own = LoadConfig("cuda", "dummy", dtype="float32", num_gpu_blocks_override=64)
    own = replace(own, enforce_eager=True)
    sizes: dict[str, Any] = {"max_num_seqs": 4, "max_model_len": 64, "block_size": 4}
    due = drive(*assembled("cuda", sizes, own, checkpoint), asked)
    head = str(head_folder(tmp_path / "head", checkpoint.config))
    drafting = {"proposer": "eagle3", "speculative_model": head, "speculation": "fixed"}
    settings = {**sizes, **drafting, "num_speculative_tokens": 2}
    draft = find_draft_weights(settings, own, "cuda", lambda *_: None, checkpoint)
    own = replace(own, tensor_parallel_size=2)
    load = ModelLoad(settings, own, checkpoint, draft=draft)
    scheduler, loaded = assemble_ranks(device_named("cuda"), model, load)
    runner = loaded.runner
    try:
        assert drive(scheduler, runner, asked, depth=2) == due
    finally:
        runner.close()
    assert scheduler.stats.encoded
    assert scheduler.stats.drafted
