"""Loads the tokenizer and the sampling defaults of a model without the weights."""

import logging
from dataclasses import replace
from pathlib import Path

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from paceline.core.config import LoadConfig, LoadFormat
from paceline.engine.sampling_rules import SamplingRules
from paceline.runner.models.shape import config_in
from paceline.text.chat_template import CHATML, MISSING, read_template
from paceline.text.tokenizer import Tokenizer
from paceline.text.vocabulary import Vocabulary

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
    recommended = tokenizer.recommended if load.generation_config == "auto" else {}
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
