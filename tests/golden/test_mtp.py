"""Drafts of MTP heads under a scheduler are those of transformers' layers over whole sequences."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from paceline import Scheduler
from paceline.core.errors import ConfigError
from paceline.core.sampling import Sampling
from paceline.core.settings.features import SpeculationConfig
from paceline.runner.attention_backend import load as load_attention
from paceline.runner.draft_heads.mtp import MTPHead, MTPWeights
from paceline.runner.kv_store import KVStore
from paceline.runner.models.description.mtp import names_of
from paceline.runner.models.model import Model
from paceline.runner.proposer import DraftInput, Drafts
from paceline.runner.proposers.mtp import Mtp
from paceline.runner.proposers.ngram import Ngram
from paceline.runner.runner import TorchRunner
from paceline.runner.weights.dummy import Dummy
from paceline.runner.weights.files import open_checkpoint
from tests.conformance.architectures import Case
from tests.golden.mtp_models import with_head
from tests.golden.support import saved
from tests.runner.driving import SETTINGS, TIGHT, drive, for_states, requests
from tests.runner.support import tiny

DRAFTS = {"proposer": "mtp", "num_speculative_tokens": 3, "speculation": "fixed"}
GREEDY = Sampling(temperature=0.0)
PAGED = load_attention("paged")


class Noted(Mtp):
    """Notes the tokens of every row, and its drafts."""

    def __init__(self, config: SpeculationConfig) -> None:
        super().__init__(config)
        self.noted: list[tuple[Tensor, list[int]]] = []

    def draft(self, rows: DraftInput) -> Drafts:
        found = super().draft(rows)
        wanted = zip(rows.tokens, rows.known.tolist(), found.ids.tolist(), strict=True)
        for tokens, known, ids in wanted:
            if drafts := [one for one in ids if one >= 0]:
                self.noted.append((tokens[:known].clone(), drafts))
        return found


def drafter_in(folder: Path, model: Model, kind: type[Mtp] = Mtp) -> Any:
    weights, drafter = MTPWeights(open_checkpoint(folder)), kind(SpeculationConfig(**DRAFTS))
    drafter.use(MTPHead.load(weights, 64), weights.target_ids(), None, PAGED)
    return drafter


def outputs(
    model: Model, drafter: Any, sampling: Sampling = GREEDY, **settings: Any
) -> tuple[dict[str, Any], Scheduler]:
    depth = settings.pop("depth", 1)
    scheduler = Scheduler.create(**for_states({**SETTINGS, **settings}, model.config))
    kv = KVStore(model.config, scheduler.config.cache.num_blocks, 4)
    runner = TorchRunner(model, kv, PAGED, drafter, 8, 64)
    return drive(scheduler, runner, requests(sampling=sampling), depth), scheduler


WAYS: dict[str, dict[str, Any]] = {
    "glm4moe": {"depth": 3, "max_num_batched_tokens": 8},
    "deepseekv3": {},
    "mimo": {**TIGHT, "depth": 2},
    "qwen3_5": {"depth": 2},
    "qwen3next": {"max_num_batched_tokens": 8},
}


@pytest.mark.parametrize("architecture", WAYS)
def test_drafts_are_those_of_the_judge(architecture: str, tmp_path: Path) -> None:
    judge = with_head(architecture, tmp_path)
    model = Model.load(open_checkpoint(tmp_path))
    plain, _ = outputs(model, Ngram(SpeculationConfig()))
    drafter = drafter_in(tmp_path, model, Noted)
    way = {"enable_prefix_caching": False, **WAYS[architecture]}
    got, scheduler = outputs(model, drafter, **DRAFTS, **way)
    assert got == plain
    assert scheduler.stats.drafted > len(drafter.noted) > 30
    for tokens, drafts in drafter.noted[:: 1 + len(drafter.noted) // 15]:
        assert drafts == judge.drafts(tokens, len(drafts))


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_all_drafts_of_a_right_head_are_accepted(temperature: float, tmp_path: Path) -> None:
    """No layer adds to the residual stream, and the head passes the embedding on: it says what the
    model says of the next token. Drawn drafts are accepted by the ratio of equal chances."""
    names = names_of(with_head("mimo", tmp_path).config)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    for name, one in tensors.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            one.zero_()
        elif name.endswith("norm.weight"):
            one.fill_(1.0)
        elif name.endswith(f"{names.linear}.weight"):
            one.copy_(torch.eye(32).repeat(1, 2))
            one[:, :32] = 0.0
    save_file(tensors, path)
    model = Model.load(open_checkpoint(tmp_path))
    sampling = Sampling(temperature=temperature)
    _, scheduler = outputs(model, drafter_in(tmp_path, model), sampling, **DRAFTS)
    assert scheduler.stats.accepted == scheduler.stats.drafted > 50


def test_checkpoints_without_heads_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="models of 'llama' have no MTP heads: use another"):
        MTPWeights(Dummy(tiny()))
    saved(Case("glm4moe"), tmp_path)
    with pytest.raises(ConfigError, match=r"'model.layers.3.eh_proj.weight' is missing: use a"):
        MTPWeights(open_checkpoint(tmp_path))
    head = MTPHead.load(MTPWeights(Dummy(Case("glm4moe").config())))
    with pytest.raises(ConfigError, match="in the checkpoint of another model"):
        head.layers_of(tiny())
