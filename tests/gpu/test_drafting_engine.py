"""Whole engines on a GPU that draft with weights: the same tokens as without."""

import json
from pathlib import Path
from typing import Any

import pytest

from paceline.engine.offline.offline import OfflineEngine
from paceline.runner.models.config import ModelConfig
from paceline.wiring.assembly import build
from tests.conformance.architectures import SIZES
from tests.gpu.support import ON_GPU
from tests.gpu.test_engine import PLAIN, SWAP, tokens
from tests.runner.eagle3 import head_folder

pytestmark = ON_GPU

DESCRIBED: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    **SIZES,
    "num_hidden_layers": 3,
}
WAYS: dict[str, dict[str, Any]] = {
    "as usual": {},
    "swapped": SWAP,
    "without graphs": {"enforce_eager": True},
}


@pytest.mark.parametrize("method", ["draft_model", "eagle3"])
@pytest.mark.parametrize("way", WAYS)
def test_greedy_output_is_the_same(method: str, way: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(DESCRIBED))
    folder = tmp_path
    if method == "eagle3":
        folder = head_folder(tmp_path / "head", ModelConfig.of_hf(DESCRIBED))
    drafting = {"method": method, "model": str(folder), "num_speculative_tokens": 3}
    plain = OfflineEngine(str(tmp_path), build, **{**PLAIN, **WAYS[way]})
    expected = tokens(plain, temperature=0.0)
    plain.close()
    settings = {**PLAIN, **WAYS[way], "speculative_config": drafting, "speculation": "fixed"}
    llm = OfflineEngine(str(tmp_path), build, **settings)
    assert tokens(llm, temperature=0.0) == expected
    counters = llm.get_metrics().counters
    drafted = counters["spec_decode_num_draft_tokens"]
    assert drafted > 0
    if method == "draft_model":  # for itself
        assert counters["spec_decode_num_accepted_tokens"] == drafted
    llm.close()
