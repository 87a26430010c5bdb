"""Drafters with random weights, for a model."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from paceline.core.settings.features import SpeculationConfig
from paceline.runner.attention_backend import load as load_attention
from paceline.runner.draft_heads.eagle3 import Eagle3Head
from paceline.runner.draft_heads.eagle3_folder import Eagle3Folder
from paceline.runner.draft_heads.mtp import MTPWeights
from paceline.runner.models.config import ModelConfig
from paceline.runner.models.model import Model
from paceline.runner.models.traits import MTPNames
from paceline.runner.proposer import Drafter, load
from paceline.runner.proposers.draft_model import DraftModel
from paceline.runner.proposers.eagle3 import Eagle3
from paceline.runner.proposers.mtp import Mtp
from paceline.runner.weights.dummy import Dummy
from tests.runner.eagle3 import head_folder
from tests.runner.support import tiny


@cache
def draft_model(vocab: int, seed: int) -> Model:
    return Model.load(Dummy(tiny(num_hidden_layers=1, vocab_size=vocab), seed=seed))


def drafter_for(model: Model, config: SpeculationConfig, seed: int = 4) -> Drafter:
    """The drafter that a configuration names, with weights if it needs some."""
    drafter, attention = load(config), load_attention("paged")
    if isinstance(drafter, DraftModel):
        drafter.use(draft_model(model.config.vocab, seed), attention)
    if isinstance(drafter, Eagle3):
        with TemporaryDirectory() as folder:
            files = Eagle3Folder(head_folder(Path(folder), model.config))
            drafter.use(Eagle3Head.load(files, files.head), files.target_ids(), None, attention)
    if isinstance(drafter, Mtp):
        weights = mtp_weights(model.config, seed)
        drafter.use(drafter.load_head(weights), weights.target_ids(), None, attention)
    return drafter


def mtp_weights(model: ModelConfig, seed: int) -> MTPWeights:
    """The head of a model, whatever its architecture."""
    traits = replace(model.traits, mtp=MTPNames())
    return MTPWeights(Dummy(replace(model, traits=traits), seed=seed))
