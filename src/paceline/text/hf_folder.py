"""Reads the vocabulary of a folder in HF's layout."""

import logging
from pathlib import Path
from typing import Any, cast

from tokenizers import Tokenizer as Backend

from paceline.core.errors import ConfigError
from paceline.core.system.files import json_object
from paceline.text.pooling_files import embedding_defaults
from paceline.text.vocabulary import ANY_CLASS, Vocabulary, backend_of

log = logging.getLogger(__name__)

Fields = dict[str, Any]
NO_DECODER = (
    "%s has no decoder: a text is its tokens with spaces between them, as in transformers. "
    "If it looks wrong, add the `decoder` of the model's original file, such as "
    '{"type": "ByteLevel"}, or use token ids, which it does not change'
)


def hf_vocabulary(folder: Path) -> Vocabulary:
    file = folder / "tokenizer.json"
    backend = tokenizer_file(file)
    settings = fields(folder / "tokenizer_config.json")
    generation = fields(folder / "generation_config.json")
    config = fields(folder / "config.json")
    model = {**config.get("text_config", {}), **config, **generation}
    bos = token_id(backend, settings.get("bos_token"), model.get("bos_token_id"))
    eos = token_id(backend, settings.get("eos_token"), None)
    ends = [eos, *listed(model.get("eos_token_id"))]
    return Vocabulary(
        backend,
        bos,
        tuple(dict.fromkeys(end for end in ends if end is not None)),
        chat_template(folder, settings.get("chat_template")),
        size=model.get("vocab_size"),
        recommended={name: value for name, value in generation.items() if value is not None},
        tool_template=tool_template(folder, settings.get("chat_template")),
        class_name=settings.get("tokenizer_class") or ANY_CLASS,
        embedding=embedding_defaults(folder, config, backend.token_to_id),
        origin=str(file),
    )


def tokenizer_file(file: Path) -> Backend:
    if not file.is_file():
        raise ConfigError(f"{file.parent} has no {file.name}")
    backend = backend_of(file.read_text(encoding="utf-8"), str(file))
    if backend.decoder is None:
        log.warning(NO_DECODER, file)
    # A length limit from training would truncate prompts silently.
    backend.no_truncation()
    backend.no_padding()
    return backend


def fields(file: Path) -> Fields:
    """Read a JSON object; a missing file has no fields."""
    return json_object(file) if file.is_file() else {}


def token_id(backend: Backend, token: str | Fields | None, otherwise: int | None) -> int | None:
    """The id of a token, given as a string or as an object with options."""
    content = token.get("content") if isinstance(token, dict) else token
    return otherwise if content is None else backend.token_to_id(content)


def listed(ids: int | list[int] | None) -> list[int] | list[int | None]:
    return ids if isinstance(ids, list) else [ids]


def chat_template(folder: Path, inline: object) -> str | None:
    """A file of its own takes precedence; of several named templates, the default.

    Models with images have had another file, whose template shows images.
    """
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    if isinstance(older := fields(folder / "chat_template.json").get("chat_template"), str):
        return older
    if inline is None or isinstance(inline, str):
        return inline
    if not isinstance(inline, list):
        raise ConfigError(
            f"{folder}: chat_template in tokenizer_config.json is neither text nor list"
        )
    return named_template(cast(list[object], inline), "default")


def tool_template(folder: Path, inline: object) -> str | None:
    """The template of the name `tool_use`, which transformers takes when there are tools."""
    file = folder / "additional_chat_templates" / "tool_use.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    return named_template(
        cast(list[object], inline if isinstance(inline, list) else []), "tool_use"
    )


def named_template(templates: list[object], name: str) -> str | None:
    for one in templates:
        match one:
            case {"name": str(known), "template": str(template)} if known == name:
                return template
            case _:
                pass
    return None
