"""Finds the weights that drafts are made with."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from paceline.core.config import LoadConfig
from paceline.core.errors import ConfigError
from paceline.core.json_file import json_object
from paceline.core.speculation_config import SpeculationConfig
from paceline.hub.progress import Progress
from paceline.hub.pull import pull
from paceline.runner.model_drafter import check_vocab
from paceline.runner.models.describe import describe
from paceline.runner.models.eagle3_config import Eagle3Config
from paceline.runner.parallel.group import RankGroup, decides
from paceline.runner.weights.checkpoint import Checkpoint
from paceline.runner.weights.eagle3 import EMBEDDING, Eagle3Folder
from paceline.text.tokenizer import Tokenizer
from paceline.wiring.model import ModelSource, find_checkpoint
from paceline.wiring.settings import part_of
from paceline.wiring.tokenizer import load_tokenizer

DraftWeights = Checkpoint | Eagle3Folder
DRAFT_MODEL, EAGLE3 = "draft_model", "eagle3"
COMPARED = 2048  # tokens of two vocabularies


def find_draft_weights(
    settings: Mapping[str, Any],
    own: LoadConfig,
    device: str,
    on: Progress,
    source: ModelSource | None = None,
) -> DraftWeights | None:
    """The weights that the settings name, if the proposer has some. They must suit the model, if
    that is given."""
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
        drafts, path = find_checkpoint(name, own.load_format, device, on)
        if source is not None:
            model = source.checkpoint.config
            check_vocab(drafts.config, model)
            tokenizer = load_tokenizer(path, own.load_format)
            compare_tokens(tokenizer, source.tokenizer, model.vocab)
        return drafts
    head = find_head(name, on)
    if source is not None:
        head.head.layers_of(source.checkpoint.config)  # refuses a head for another model
    return head


def embedding_for(draft: DraftWeights, model: Checkpoint, group: RankGroup | None) -> Tensor | None:
    """The embedding of an EAGLE-3 head; None if it can use that of the model in memory, of which
    each of several ranks has a part."""
    if not isinstance(draft, Eagle3Folder) or not decides(group):
        return None
    if draft.has_embedding:
        return draft.read(EMBEDDING)
    return None if group is None else model.read(describe(model.config).embedding.name)


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
