"""SGLang's three modes on a CPU, through the public door."""

from pathlib import Path
from typing import Any

import pytest

from paceline import LLM
from paceline.runner.native.library import is_available
from tests.golden.small_model import small_model
from tests.property.three_modes import all_modes

if not is_available():
    pytest.skip("needs a C compiler", allow_module_level=True)

SETTINGS: dict[str, Any] = {"device": "cpu", "max_model_len": 64, "block_size": 4}


@pytest.mark.parametrize("weights", ["float32", "int8"])
def test_every_question_has_one_answer(tmp_path: Path, weights: str) -> None:
    model = str(small_model(tmp_path / "small"))
    with LLM(model, batch_invariant=True, weights=weights, **SETTINGS) as llm:
        for mode, found in all_modes(llm, 40, 12).items():
            assert {len(one) for one in found.values()} == {1}, mode
        assert llm.get_metrics().counters["prefix_cache_hits"]
