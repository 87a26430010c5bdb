"""A recording that is computed again with its model."""

from pathlib import Path
from typing import Any

import pytest

from paceline import LLM, SamplingParams
from paceline.cli.main import main
from paceline.runner.native.library import is_available
from tests.golden.small_model import small_model

if not is_available():
    pytest.skip("needs a C compiler", allow_module_level=True)

PROMPTS = ["the quick brown fox jumps", "the lazy dog", "the quick brown fox sat on the mat", "cat"]
SETTINGS: dict[str, Any] = {
    "device": "cpu",
    "max_model_len": 64,
    "max_num_seqs": 3,
    "max_num_batched_tokens": 12,
    "block_size": 4,
    "num_gpu_blocks_override": 17,
    "swap_space": 0.001,
    "num_speculative_tokens": 2,
    "depth": 2,
}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model, and the recording of a run with preemptions and drafts."""
    folder = tmp_path_factory.mktemp("model")
    file, model = folder / "run.paceline", small_model(folder / "small")
    params = SamplingParams(temperature=0.8, max_tokens=30, seed=3, ignore_eos=True)
    with LLM(str(model), record=str(file), batch_invariant=True, **SETTINGS) as llm:
        llm.generate(PROMPTS * 2, params, progress=False)
        assert llm.get_metrics().counters["num_preemptions"]
    return model, file


def test_every_token_is_computed_again(
    recorded: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    model, file = recorded
    assert main(["replay", str(file), "--model", str(model), "--batch-invariant"]) == 0
    found = capsys.readouterr().out
    assert "tokens    all 240 identical" in found
    assert "recorded by" not in found


def test_the_first_other_token_is_named(
    recorded: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    model, file = recorded
    assert main(["replay", str(file), "--model", str(model), "--weights", "int8"]) == 1
    found = capsys.readouterr().out
    assert "recorded by fp_" in found
    assert "identical, then token" in found


def test_settings_of_a_model_need_one(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["replay", "run.paceline", "--batch-invariant"])
    assert "--batch-invariant is for a replay with --model" in capsys.readouterr().err
