"""Finds a model and its drafter by name: weights and tokenizer."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from paceline.core.errors import ConfigError
from paceline.core.settings.features import SpeculationConfig
from paceline.core.settings.load import LoadConfig
from paceline.core.system.files import json_object
from paceline.hub.catalogue import repository_named
from paceline.hub.pull import pull
from paceline.hub.repository_files import Progress
from paceline.runner.draft_heads.eagle3 import Eagle3Config
from paceline.runner.draft_heads.eagle3_folder import Eagle3Folder
from paceline.runner.draft_heads.head import DraftWeights, HeadWeights
from paceline.runner.draft_heads.mtp import MTPWeights
from paceline.runner.model_drafter import check_vocab
from paceline.runner.models.describe import config_in, describe, named_shapes
from paceline.runner.parallel.group import RankGroup, decides
from paceline.runner.proposer import class_of
from paceline.runner.weights.checkpoint import Checkpoint
from paceline.runner.weights.dummy import Dummy
from paceline.runner.weights.files import open_checkpoint
from paceline.runner.weights.gguf import GGUF
from paceline.runner.weights.safetensors import SafetensorsFolder
from paceline.runner.weights.weight_format import UNQUANTIZED
from paceline.text.tokenizer import Tokenizer
from paceline.wiring.device import device_named
from paceline.wiring.model_files import download, load_tokenizer
from paceline.wiring.settings import part_of


@dataclass(frozen=True, slots=True, eq=False)
class ModelSource:
    """The weights of a model on disk, its tokenizer, and where they are."""

    checkpoint: Checkpoint
    tokenizer: Tokenizer
    path: str


def find_model(name: str, load_config: LoadConfig, device: str, progress: Progress) -> ModelSource:
    """Find a model by a name that can be pulled, by path, or by the name of a shape.

    A shape has random weights.
    """
    checkpoint, path = find_checkpoint(name, load_config, device, progress)
    words = path, load_config.load_format, load_config.chat_template
    with ThreadPoolExecutor(1) as thread:
        tokenizer = thread.submit(load_tokenizer, *words)
        device_named(device)  # importing it takes as long
        return ModelSource(checkpoint, tokenizer.result(), path)


def find_checkpoint(
    name: str, load_config: LoadConfig, device: str, progress: Progress
) -> tuple[Checkpoint, str]:
    """The same without the tokenizer: the weights, and where they are."""
    form, quantization = load_config.load_format, load_config.quantization
    if form == "dummy":
        config = config_in(name)
        if config.quantization != UNQUANTIZED:
            raise ConfigError(
                f"load_format is 'dummy', which draws plain weights, and the config.json of {name} "
                "has a quantization_config: remove it, and set quantization"
            )
        return Dummy(config.loaded_as(quantization), device=device), name
    if name in named_shapes() and repository_named(name) is None:
        raise ConfigError(
            f"{name} is a shape without weights; set load_format to 'dummy' for random weights"
        )
    path = Path(download(name, progress))
    checkpoint = open_checkpoint(path, quantization)
    if checkpoint.config.vision is not None and lacks(device, checkpoint):
        checkpoint = open_checkpoint(path, quantization, text_only=True)
    kinds = {"gguf": GGUF, "safetensors": SafetensorsFolder}
    if form != "auto" and not isinstance(checkpoint, kinds[form]):
        raise ConfigError(
            f"load_format is {form!r}, but {path} has another format; set load_format to 'auto'"
        )
    return checkpoint, str(path)


def lacks(device: str, checkpoint: Checkpoint) -> bool:
    """Does a device lack a feature of a model?"""
    return device_named(device).SUPPORT.supports(describe(checkpoint.config)) is not None


COMPARED = 2048  # tokens of two vocabularies


def find_draft_weights(
    settings: Mapping[str, Any],
    load_config: LoadConfig,
    device: str,
    on: Progress,
    model: Checkpoint,
    tokenizer: Tokenizer | None = None,
) -> DraftWeights | None:
    """The weights that the settings name, if the proposer has some. They must suit the model; the
    tokenizer is compared if it is given."""
    chosen = part_of(SpeculationConfig, settings)
    name, proposer = chosen.speculative_model, chosen.proposer
    weights = class_of(chosen).weights
    if weights in ("none", "mtp head"):
        if name:
            raise ConfigError(
                f"speculative_model is {name!r}, but proposer {proposer!r} has no weights of its "
                "own: remove it, or set proposer to 'draft_model' or 'eagle3'"
            )
        return None if weights == "none" else MTPWeights(model)
    if not name:
        raise ConfigError(f"proposer {proposer!r} needs weights: set speculative_model")
    if weights == "model":
        drafts, path = find_checkpoint(name, replace(load_config, quantization="auto"), device, on)
        if drafts.config.states is not None:
            raise ConfigError(
                f"speculative_model is {name!r}, which has layers with states: drafts that are "
                "rejected would stay in them; use another model"
            )
        check_vocab(drafts.config, model.config)
        if tokenizer is not None:
            of_drafts = load_tokenizer(path, load_config.load_format)
            compare_tokens(of_drafts, tokenizer, model.config.vocab)
        return drafts
    head = find_head(name, on)
    head.head.layers_of(model.config)  # refuses a head for another model
    return head


def embedding_for(draft: DraftWeights, model: Checkpoint, group: RankGroup | None) -> Tensor | None:
    """The embedding of a head; None if it can use that of the model in memory, of which each of
    several ranks has a part."""
    if not isinstance(draft, HeadWeights) or not decides(group):
        return None
    if draft.embedding is not None:
        return draft.read(draft.embedding)
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
