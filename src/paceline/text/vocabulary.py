"""The vocabulary of a model, from any kind of file."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tokenizers import AddedToken, models
from tokenizers import Tokenizer as Backend
from tokenizers.processors import TemplateProcessing

from paceline.core.errors import ConfigError
from paceline.text.pooling_files import NO_DEFAULTS, EmbeddingDefaults

Document = dict[str, Any]
Merge = tuple[str, str]
ANY_CLASS = "PreTrainedTokenizerFast"  # the class of transformers that reads any tokenizer.json


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A tokenizer of the `tokenizers` library, and what that library does not store."""

    backend: Backend
    bos: int | None  # the id at the start of a text
    eos: tuple[int, ...]  # ids that end a text, the main one first
    chat_template: str | None  # its jinja source
    size: int | None = None  # ids of the model, if the files say it
    # Sampling parameters that the files recommend, under the names of generation_config.json.
    recommended: Mapping[str, Any] = field(default_factory=dict[str, Any])
    tool_template: str | None = None  # the template for conversations with tools, if it is another
    embedding: EmbeddingDefaults = NO_DEFAULTS  # how texts are embedded
    class_name: str = ANY_CLASS  # the class that transformers reads it with
    origin: str = "the tokenizer"  # its file, for messages


@dataclass(frozen=True, slots=True)
class TokenizerParts:
    """A byte-pair tokenizer.

    rules    normalizer, pre_tokenizer and decoder, in the format of `tokenizer.json`
    vocab    ids by token
    merges   the best ones first
    options  of the library's model
    """

    rules: Document
    vocab: dict[str, int]
    merges: list[Merge]
    options: Document


def backend_in_parts(parts: TokenizerParts, added: list[AddedToken], origin: str) -> Backend:
    """Build a tokenizer without writing and parsing its vocabulary as a document, which takes most
    of the time that loading a tokenizer takes."""
    empty: Document = {"type": "BPE", "vocab": {}, "merges": []}
    document: Document = {"version": "1.0", "added_tokens": [], **parts.rules, "model": empty}
    backend = backend_of(json.dumps(document, ensure_ascii=False), origin)
    try:
        backend.model = models.BPE(parts.vocab, parts.merges, **parts.options)
    except Exception as error:  # noqa: BLE001 - the library raises nothing more specific
        raise ConfigError(f"{origin} is not a valid tokenizer: {error}") from None
    backend.add_tokens(added)  # pyright: ignore[reportUnknownMemberType]
    return backend


def backend_of(document: str, origin: str) -> Backend:
    """Build a tokenizer from a document in the format of `tokenizer.json`."""
    try:
        return Backend.from_str(document)
    except Exception as error:  # noqa: BLE001 - the library raises nothing more specific
        raise ConfigError(f"{origin} is not a valid tokenizer: {error}") from None


def frame(backend: Backend, before: int | None, after: int | None) -> None:
    """Let the encoder add a token before and after every text, if given.

    Aliases stand for these tokens, since the text of a token may have a meaning in a template.
    """
    ends = {"before": before, "after": after}
    frames = {alias: id for alias, id in ends.items() if id is not None}
    backend.post_processor = TemplateProcessing(
        single=[alias for alias in ("before", "$A", "after") if alias in frames or alias == "$A"],
        special_tokens=[
            {"id": alias, "ids": [id], "tokens": [backend.id_to_token(id)]}
            for alias, id in frames.items()
        ],
    )
