"""What a model brings along for reading and writing text, wherever it was loaded from."""

from dataclasses import dataclass

from tokenizers import Tokenizer as Backend
from tokenizers.processors import TemplateProcessing

from paceline.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A tokenizer of the `tokenizers` library, and what that library does not keep."""

    backend: Backend
    bos: int | None  # the id that begins a text
    eos: tuple[int, ...]  # ids that end one, the principal first
    chat_template: str | None  # its jinja source
    size: int | None = None  # ids that the model has, where the files say


def backend_of(document: str, origin: str) -> Backend:
    """Build the tokenizer that a document in the manner of `tokenizer.json` describes."""
    try:
        return Backend.from_str(document)
    except Exception as error:  # noqa: BLE001 - the library raises nothing more specific
        raise ConfigError(f"{origin} is not a valid tokenizer: {error}") from None


def frame(backend: Backend, before: int | None, after: int | None) -> None:
    """Let the encoder put a token before and after every text, where there is one to put.

    They go by aliases, since the text of a token may mean something else in a template.
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
