"""What front ends load of a model without its weights: tokenizer, template, image reader."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from paceline.core.errors import ConfigError, RequestError
from paceline.core.multimodal import ImagePrompt
from paceline.core.settings.load import LoadConfig, LoadFormat
from paceline.core.system.files import json_object
from paceline.engine.loop.ports import PromptImages
from paceline.engine.sampling_rules import SamplingRules
from paceline.hub.pull import pull
from paceline.hub.repository_files import Progress, silent
from paceline.runner.encoders.config import encoder_config
from paceline.runner.models.config import ModelConfig
from paceline.runner.models.config_entries import ConfigEntries
from paceline.runner.models.describe import config_in
from paceline.runner.models.hf_config import architecture
from paceline.text.chat_template import CHATML, MISSING, read_template
from paceline.text.tokenizer import Tokenizer
from paceline.text.vocabulary import Vocabulary
from paceline.wiring.vllm.values import LIMIT, mapping_in


def download(name: str | Path, progress: Progress = silent) -> Path:
    """The `.gguf` file or the folder of a model, by name, path or repository."""
    return pull(name, progress, check=check_config)


def check_config(file: Path) -> None:
    """ConfigError if no backend has the architecture that a config.json describes."""
    if encoder_config(file.parent) is None:
        ModelConfig.of_hf(json_object(file))


log = logging.getLogger(__name__)

ALL = -1  # alternatives of a token


def load_tokenizer(path: str, form: LoadFormat, chat_template: str = "") -> Tokenizer:
    """The tokenizer beside the weights; for random weights without one, a token per byte.

    `chat_template` is the setting of that name.
    """
    folder = Path(path).expanduser()
    template = read_template(chat_template) if chat_template else None
    if form == "dummy" and not (folder / "tokenizer.json").is_file():
        return Tokenizer(bytes_as_tokens(config_in(path).vocab, template or CHATML))
    return Tokenizer.load(folder, template)


def sampling_rules(tokenizer: Tokenizer, load: LoadConfig) -> SamplingRules:
    """Sampling defaults of the model, unless they are switched off, and the limits of settings."""
    is_used = load.generation_config == "auto"
    recommended: Mapping[str, Any] = tokenizer.recommended if is_used else {}
    most = load.max_logprobs
    rules = SamplingRules.of(recommended, ALL if most >= tokenizer.vocab_size else most)
    embedding = tokenizer.embedding
    if load.pooling != "auto":
        embedding = replace(embedding, pooling=load.pooling, problem="")
    return replace(rules, embedding=embedding, seed=load.seed)


def log_rules(rules: SamplingRules) -> None:
    """Name the sampling defaults of the model, if it has any, and how a reranker scores."""
    if rules.embedding.pair_template:
        log.info("scores of two texts: how much likelier yes is than no as the next token")
    if rules.summary:
        log.info(
            "sampling defaults of the model: %s; --generation-config none switches them off",
            rules.summary,
        )


def log_template(tokenizer: Tokenizer) -> None:
    """Warn if the model cannot read conversations."""
    if not tokenizer.chat_template:
        log.warning("requests with messages are refused: %s", MISSING)


def bytes_as_tokens(size: int, chat_template: str) -> Vocabulary:
    """A vocabulary with a token for each byte. Other ids decode to their number."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())[:size]
    words = [*alphabet, *(f"<{id}>" for id in range(len(alphabet), size))]
    backend = Backend(models.BPE({word: id for id, word in enumerate(words)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return Vocabulary(backend, bos=None, eos=(), chat_template=chat_template)


log = logging.getLogger(__name__)


def load_images(
    path: str, tokenizer: Tokenizer, load: LoadConfig, text_only: bool = False
) -> PromptImages | None:
    """The reader of images of a model in a folder; None if the model reads none. With `text_only`,
    the model was loaded without them."""
    folder = Path(path).expanduser()
    limit = images_per_prompt(load.limit_mm_per_prompt)
    file = folder / "config.json"
    raw = json_object(file) if file.is_file() else {}
    if "vision_config" not in raw:
        return None
    if (model := text_part_of(raw, text_only)) is not None:
        return RefusedImages(model)
    if find_spec("PIL") is None:
        raise ConfigError(
            "this model reads images, for which Pillow is missing; install paceline[images]"
        )
    reader = import_module("paceline.images.decode")  # only a model with images needs Pillow
    limits = reader.ImageLimits(limit, load.max_image_pixels)
    return reader.ImageReader.load(folder, partial(tokenizer.encode, special=False), limits)


def text_part_of(raw: dict[str, Any], text_only: bool) -> str | None:
    """The name of a model of which only the text part is computed; None if it is another one."""
    entries = ConfigEntries(raw, "config.json")
    found = architecture(entries, text_only)
    return entries.need("architectures")[0] if found.is_text_part else None


def log_images(images: PromptImages | None) -> None:
    """Warn if images of the model are refused."""
    if isinstance(images, RefusedImages):
        log.warning(
            "%s: images of this model are not supported here; its text part is loaded", images.model
        )


class RefusedImages:
    """Refuses the images of prompts by the name of the model."""

    largest = 0

    def __init__(self, model: str) -> None:
        self.model = model

    def read(self, token_ids: Sequence[int], images: Sequence[Any]) -> ImagePrompt:
        raise RequestError(
            f"images of {self.model} are not supported, only its text part is loaded; send text "
            "only"
        )


def images_per_prompt(given: str) -> int:
    """Most images of a prompt, of a setting in vLLM's form: {"image": 4}."""
    found = mapping_in(LIMIT, given, '{"image": 4}')
    most = found.pop("image", 0)
    if found or type(most) is not int or most < 0:
        raise ConfigError(f"{LIMIT} is {given!r:.200}; it maps 'image' to the most of a prompt")
    return most
