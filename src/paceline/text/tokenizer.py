"""Encodes text to token ids and decodes it, for all vocabulary files."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from tokenizers import Tokenizer as Backend

from paceline.core.errors import ConfigError, RequestError
from paceline.text.chat_template import ChatTemplate, Message
from paceline.text.gguf_vocabulary import gguf_vocabulary
from paceline.text.hf_folder import hf_vocabulary
from paceline.text.spelling import Spelling, spelling_of
from paceline.text.vocabulary import Vocabulary

LONG_TEXT = 4096  # characters; a longer text takes milliseconds


class WholeTexts(dict[int, str | None]):
    """The texts of tokens, computed at first use; None for a part of a character."""

    def __init__(self, spelled: "Spelled") -> None:
        super().__init__()
        self._spelled = spelled

    def __missing__(self, id: int) -> str | None:
        try:
            found = self._spelled[id].decode()
        except UnicodeDecodeError:
            found = None
        self[id] = found
        return found


class Spelled(dict[int, bytes]):
    """The bytes of tokens, computed at first use.

    `hidden` ids have no bytes, nor do ids without a token: models may have more ids than their
    vocabulary has tokens.
    """

    def __init__(self, backend: Backend, spelling: Spelling, hidden: Iterable[int] = ()) -> None:
        super().__init__(dict.fromkeys(hidden, b""))
        self._backend, self._spelling = backend, spelling
        self._added = backend.get_added_tokens_decoder().keys()
        self.texts = WholeTexts(self)

    def __missing__(self, id: int) -> bytes:
        try:
            token = self._backend.id_to_token(id)
        except (OverflowError, TypeError):
            raise RequestError(f"{id!r} is not a token id") from None
        if token is None:
            return b""
        found = self[id] = self._spelling.bytes_of(token, added=id in self._added)
        return found


@dataclass(frozen=True, slots=True)
class InfillMarkers:
    """The tokens of a model that inserts text between a prefix and a suffix."""

    prefix: str
    suffix: str
    middle: str

    def prompt(self, before: str, after: str) -> str:
        """The prompt after which the model writes what is between two texts."""
        return f"{self.prefix}{before}{self.suffix}{after}{self.middle}"


# Of Qwen and CodeGemma, of StarCoder and Granite, of DeepSeek.
INFILL = (
    InfillMarkers("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    InfillMarkers("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    InfillMarkers("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
)


class Tokenizer:
    """Decoding concatenates the bytes of tokens and decodes them as UTF-8.

    So the text of a sequence is the same as a whole and token by token, and the cost of an id does
    not depend on its position.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        backend = self._backend = vocabulary.backend
        self.bos, self.eos = vocabulary.bos, vocabulary.eos
        self.class_name = vocabulary.class_name
        self.chat_template = vocabulary.chat_template
        self.tool_template = vocabulary.tool_template
        self.recommended, self.embedding = vocabulary.recommended, vocabulary.embedding
        self.vocab_size = vocabulary.size or backend.get_vocab_size(with_added_tokens=True)
        spelling = spelling_of(backend, vocabulary.origin)
        added = backend.get_added_tokens_decoder()
        self.special = frozenset(id for id, token in added.items() if token.special)
        self.strips_space = spelling.strips_space
        self._whole = Spelled(backend, spelling)
        self._visible = Spelled(backend, spelling, self.special)

    @classmethod
    def load(cls, path: Path | str, chat_template: str | None = None) -> "Tokenizer":
        """Load from a GGUF file, or from a folder with a `tokenizer.json`.

        A `chat_template` replaces the one that is there.
        """
        path = Path(path)
        if path.is_dir():
            found = hf_vocabulary(path)
        elif path.is_file():
            found = gguf_vocabulary(path)
        else:
            raise ConfigError(f"{path} is neither a GGUF file nor a folder")
        if chat_template is not None:
            found = replace(found, chat_template=chat_template, tool_template=None)
        return cls(found)

    def files(self) -> dict[str, str]:
        """Contents of `tokenizer.json` and `tokenizer_config.json`, as transformers reads them."""
        template: Any = self.chat_template
        if self.tool_template is not None:
            named = {"default": self.chat_template, "tool_use": self.tool_template}
            template = [{"name": name, "template": one} for name, one in named.items()]
        config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": self.bos_token or None,
            "eos_token": self.eos_token or None,
            "chat_template": template,
        }
        return {
            "tokenizer.json": self._backend.to_str(),
            "tokenizer_config.json": json.dumps(config),
        }

    @cached_property
    def longest(self) -> int:
        """Bytes of the longest token."""
        return max(len(self._whole[id]) for id in range(self.vocab_size))

    @cached_property
    def infill(self) -> InfillMarkers | None:
        """The tokens for insertion; None: the model has none."""
        known = {token.content for token in self._backend.get_added_tokens_decoder().values()}
        return next((one for one in INFILL if {one.prefix, one.suffix, one.middle} <= known), None)

    @property
    def bos_token(self) -> str:
        return "" if self.bos is None else self.token(self.bos)

    @property
    def eos_token(self) -> str:
        return self.token(self.eos[0]) if self.eos else ""

    @property
    def bos_token_id(self) -> int | None:
        return self.bos

    @property
    def eos_token_id(self) -> int | None:
        """The main end token; `eos` has all of them."""
        return self.eos[0] if self.eos else None

    def apply_chat_template(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template: str | None = None,
        tokenize: Literal[False] = False,
        **variables: Any,
    ) -> str:
        """The prompt of a conversation as text, as transformers renders it with `tokenize=False`.

        `encode(text, special=False)` has its token ids.
        """
        if tokenize:
            raise RequestError("tokenize is not supported: encode the text with special=False")
        template = ChatTemplate.of(self)
        return (template if chat_template is None else template.replaced(chat_template)).render(
            messages,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            tools=tools,
            variables=variables,
        )

    def encode(self, text: str, special: bool = True) -> list[int]:
        """Special tokens in the text are recognised; `special` adds those at its start and end."""
        if len(text) > LONG_TEXT:
            # The backend's `encode` keeps the interpreter lock: all threads would wait for it.
            return self.encode_all([text], special)[0]
        check_text(text)
        return self._backend.encode(text, add_special_tokens=special).ids

    def encode_pair(self, text: str, other: str) -> list[int]:
        """Two texts, with the special tokens that are between and around them."""
        for one in (text, other):
            check_text(one)
        (found,) = self._backend.encode_batch_fast([(text, other)])
        return found.ids

    def encode_all(self, texts: Sequence[str], special: bool = True) -> list[list[int]]:
        """Encode several texts on all cores, without the interpreter lock."""
        for text in texts:
            check_text(text)
        found = self._backend.encode_batch_fast(list(texts), add_special_tokens=special)
        return [one.ids for one in found]

    def decode(self, ids: Iterable[int], skip_special: bool = True) -> str:
        joined = b"".join(map(self.spelled(skip_special).__getitem__, ids))
        if self.strips_space:
            joined = joined.removeprefix(b" ")
        return joined.decode(errors="replace")

    def token(self, id: int) -> str:
        """The text of one token, with its leading space."""
        return self._whole[id].decode(errors="replace")

    def raw_token(self, id: int) -> str:
        """A token as the vocabulary has it, such as "Ġis" for " is"; empty: there is none."""
        return self._backend.id_to_token(id) or ""

    def token_bytes(self, id: int) -> bytes:
        """The bytes of one token, which may be part of a character."""
        return self._whole[id]

    def spelled(self, skip_special: bool) -> Spelled:
        """The bytes by id, with special tokens or without."""
        return self._visible if skip_special else self._whole


def check_text(text: str) -> None:
    """Raise a RequestError for a character that no encoding has."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(
            f"the text cannot be encoded: character {error.start} is an unpaired surrogate"
        ) from None
