"""Finds the weights that drafts are made with."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline.core.config import LoadConfig
from paceline.core.errors import ConfigError
from paceline.core.json_file import json_object
from paceline.core.speculation_config import SpeculationConfig
from paceline.hub.progress import Progress
from paceline.hub.pull import pull
from paceline.runner.model_drafter import check_vocab
from paceline.runner.models.eagle3_config import Eagle3Config
from paceline.runner.weights.checkpoint import Checkpoint
from paceline.runner.weights.eagle3 import Eagle3Folder
from paceline.text.tokenizer import Tokenizer
from paceline.wiring.model import ModelSource, find_model
from paceline.wiring.settings import part_of

DraftWeights = Checkpoint | Eagle3Folder
DRAFT_MODEL, EAGLE3 = "draft_model", "eagle3"
COMPARED = 2048  # tokens of two vocabularies


def find_draft_weights(
    settings: Mapping[str, Any], own: LoadConfig, source: ModelSource, device: str, on: Progress
) -> DraftWeights | None:
    """The weights that the settings name, if the proposer has some. They must suit the model."""
    chosen = part_of(SpeculationConfig, settings)
    name, proposer = chosen.speculative_model, chosen.proposer
    if proposer not in (DRAFT_MODEL, EAGLE3):
        if name:
            raise ConfigError(
                f"speculative_model is {name!r}, but proposer {proposer!r} has no weights: set "
                f"proposer to {DRAFT_MODEL!r} or {EAGLE3!r}"
            )
        return None
    if not name:
        raise ConfigError(f"proposer {proposer!r} needs weights: set speculative_model")
    if proposer == DRAFT_MODEL:
        drafts = find_model(name, own.load_format, device, on)
        check_vocab(drafts.checkpoint.config, source.checkpoint.config)
        compare_tokens(drafts.tokenizer, source.tokenizer, source.checkpoint.config.vocab)
        return drafts.checkpoint
    head = find_head(name, on)
    head.head.layers_of(source.checkpoint.config)  # refuses a head for another model
    return head


def find_head(name: str, progress: Progress) -> Eagle3Folder:
    """A folder, or a repository."""
    folder = Path(name).expanduser()
    if not folder.is_dir():
        folder = pull(name, progress, check=check_head)
    return Eagle3Folder(folder)


def check_head(file: Path) -> None:
    """ConfigError if a config.json describes no head that can be used."""
    Eagle3Config.of_hf(json_object(file))


def compare_tokens(drafts: Tokenizer, model: Tokenizer, vocab: int) -> None:
    """ConfigError if ids mean other texts to the draft model. Some of them are compared."""
    for id in range(0, vocab, max(vocab // COMPARED, 1)):
        if drafts.token_bytes(id) != model.token_bytes(id):
            raise ConfigError(
                f"token {id} is {drafts.token(id)!r} for the draft model and {model.token(id)!r} "
                "for the model: use a draft model with the same tokenizer"
            )
