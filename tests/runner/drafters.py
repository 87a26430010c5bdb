"""Drafters with random weights, for a model."""

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from paceline.core.settings.features import SpeculationConfig
from paceline.runner.attention_backend import load as load_attention
from paceline.runner.models.eagle3 import Eagle3Head
from paceline.runner.models.model import Model
from paceline.runner.proposer import Drafter, load
from paceline.runner.proposers.draft_model import DraftModel
from paceline.runner.proposers.eagle3 import Eagle3
from paceline.runner.weights.dummy import Dummy
from paceline.runner.weights.eagle3 import Eagle3Folder
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
    return drafter
