"""The vocabulary of a model, from any kind of file."""

from dataclasses import dataclass

from tokenizers import Tokenizer as Backend
from tokenizers.processors import TemplateProcessing

from paceline.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A tokenizer of the `tokenizers` library, and what that library does not store."""

    backend: Backend
    bos: int | None  # the id at the start of a text
    eos: tuple[int, ...]  # ids that end a text, the main one first
    chat_template: str | None  # its jinja source
    size: int | None = None  # ids of the model, if the files say it


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
