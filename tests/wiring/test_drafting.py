"""Engines that draft with weights: the same output, and clear errors."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models
from torch import Tensor

from paceline import LLM, SamplingParams
from paceline.core.errors import ConfigError
from paceline.runner.models.config import ModelConfig
from paceline.runner.proposers.draft_model import DraftModel
from paceline.runner.proposers.ngram import Ngram
from paceline.text.tokenizer import Tokenizer
from paceline.wiring.assembly import build
from paceline.wiring.model import compare_tokens
from paceline.wiring.model_files import bytes_as_tokens
from tests.golden.image_models import image_model
from tests.golden.image_sizes import IDS, random_image
from tests.runner.eagle3 import head_folder
from tests.wiring.support import DESCRIBED

SMALL: dict[str, Any] = {
    "load_format": "dummy",
    "device": "cpu",
    "kv_cache_gib": 0.002,
    "max_model_len": 64,
    "max_num_seqs": 8,
}
PROMPTS = ["a long time ago", "in a galaxy", "far, far away"]


def described(folder: Path, **changes: Any) -> str:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**DESCRIBED, **changes}))
    return str(folder)


def outputs(model: Path, **settings: Any) -> tuple[list[list[int]], dict[str, float]]:
    """Tokens of a few prompts, some of which are sampled several times, and the counters."""
    params = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True, n=2)
    with LLM(str(model), **SMALL, **settings) as llm:
        found = [
            list(one.token_ids)
            for output in llm.generate(PROMPTS, params)
            for one in output.outputs
        ]
        return found, llm.get_metrics().counters


def drafting(method: str, model: str) -> dict[str, Any]:
    given = {"method": method, "model": model, "num_speculative_tokens": 3}
    return {"speculative_config": given, "speculation": "fixed"}


def test_output_is_the_same_with_a_draft_model_and_without(model: Path, tmp_path: Path) -> None:
    plain, _ = outputs(model)
    smaller = described(tmp_path / "smaller", num_hidden_layers=1, hidden_size=16)
    got, counters = outputs(model, **drafting("draft_model", smaller))
    assert got == plain
    tried = counters["spec_decode_num_draft_tokens"]
    assert 0 < counters["spec_decode_num_accepted_tokens"] + 1 < tried
    got, counters = outputs(model, **drafting("draft_model", str(model)))  # its own draft model
    assert got == plain
    tried = counters["spec_decode_num_draft_tokens"]
    assert tried == counters["spec_decode_num_accepted_tokens"] > 0


class CountedDrafts(DraftModel):
    """A drafter with weights that is found by its dotted path."""

    drafted_for = 0

    def drafted(self, slot: Tensor, known: Tensor, number: Tensor) -> None:
        super().drafted(slot, known, number)
        CountedDrafts.drafted_for += len(slot)


def test_a_drafter_with_weights_by_its_dotted_path(model: Path) -> None:
    path = f"{__name__}.CountedDrafts"
    given = {"proposer": path, "speculative_model": str(model), "num_speculative_tokens": 3}
    got, _ = outputs(model, **given, speculation="fixed")
    assert got == outputs(model)[0]
    assert CountedDrafts.drafted_for > 0


def test_output_is_the_same_with_a_head_and_without(model: Path, tmp_path: Path) -> None:
    plain, _ = outputs(model)
    head = head_folder(tmp_path / "head", ModelConfig.of_hf(DESCRIBED))
    got, counters = outputs(model, **drafting("eagle3", str(head)))
    assert got == plain
    assert counters["spec_decode_num_draft_tokens"] > 0


def with_images(model: Path, **settings: Any) -> tuple[list[list[int]], dict[str, float]]:
    """The same of prompts with images, some of which are equal."""
    marked = [5, 6, IDS["<|image_pad|>"], 7]
    prompts = [
        {"prompt_token_ids": marked, "multi_modal_data": {"image": random_image(16, 24, seed)}}
        for seed in (1, 2, 1)
    ]
    params = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)
    small = {**SMALL, "load_format": "auto", "max_num_batched_tokens": 16}
    with LLM(str(model), **small, **settings) as llm:
        found = [list(one.outputs[0].token_ids) for one in llm.generate(prompts, params)]
        return found, llm.get_metrics().counters


def test_drafters_read_tokens_in_the_place_of_images(tmp_path: Path) -> None:
    """Also the model itself, which is a bad draft model then."""
    folder = image_model("Qwen2_5_VL").folder
    plain, _ = with_images(folder)
    assert plain[0] == plain[2] != plain[1]
    config = ModelConfig.of_hf(json.loads((folder / "config.json").read_text()))
    head = head_folder(tmp_path / "head", config)
    for method, drafts in (("draft_model", folder), ("eagle3", head)):
        got, counters = with_images(folder, **drafting(method, str(drafts)))
        assert got == plain
        tried = counters["spec_decode_num_draft_tokens"]
        assert counters["spec_decode_num_accepted_tokens"] < tried


class Elsewhere(Ngram):
    """Declares weights, and is no drafter of a CPU that has some."""

    weights = "model"


def test_kv_of_a_draft_model_is_part_of_the_memory(model: Path) -> None:
    """It has as many layers again, so half as many blocks fit."""
    given = {"proposer": "draft_model", "speculative_model": str(model)}
    alone, both = (
        build(str(model), **SMALL, **more).scheduler.config.cache.num_blocks for more in ({}, given)
    )
    assert both == alone // 2


@pytest.mark.parametrize(
    ("given", "changes", "reason"),
    [
        ({"proposer": "draft_model"}, None, "'draft_model' needs weights: set speculative_model"),
        ({"proposer": "eagle3"}, None, "'eagle3' needs weights: set speculative_model"),
        ({"proposer": "ngram"}, {}, "proposer 'ngram' has no weights"),
        ({"proposer": f"{__name__}.Elsewhere"}, {}, "Elsewhere' does not draft on a CPU"),
        ({"proposer": "draft_model"}, {"vocab_size": 300}, "300 tokens and the model one of 400"),
        ({"proposer": "eagle3"}, {"num_hidden_layers": 1}, "model.safetensors cannot be read"),
    ],
)
def test_weights_that_do_not_suit_are_refused(
    given: dict[str, Any],
    changes: dict[str, Any] | None,
    reason: str,
    model: Path,
    tmp_path: Path,
) -> None:
    if changes is not None:
        given = {**given, "speculative_model": described(tmp_path / "other", **changes)}
    with pytest.raises(ConfigError, match=reason):
        LLM(str(model), **SMALL, num_speculative_tokens=2, **given)


def test_ids_must_mean_the_same_texts() -> None:
    plain = bytes_as_tokens(300, "")
    compare_tokens(Tokenizer(plain), Tokenizer(plain), 300)
    words = plain.backend.get_vocab()
    words["a"], words["b"] = words["b"], words["a"]
    other = replace(plain, backend=Backend(models.BPE(words, [])))
    other.backend.decoder = plain.backend.decoder
    with pytest.raises(ConfigError, match="is 'b' for the draft model and 'a' for the model"):
        compare_tokens(Tokenizer(other), Tokenizer(plain), 300)
