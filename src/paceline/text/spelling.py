"""The bytes that a token stands for."""

import json
import re
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer as Backend

from paceline.core.errors import ConfigError

DECODERS = "ByteLevel, ByteFallback, Fuse, Replace, Strip of one space, Metaspace and WordPiece"
BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def byte_alphabet() -> dict[str, int]:
    """The characters that stand for bytes in byte-level vocabularies.

    Bytes that are printable in Latin-1 stand for themselves, the others for characters after
    Latin-1.
    """
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = sorted(set(range(0x100)) - set(visible))
    return {chr(byte): byte for byte in visible} | {
        chr(0x100 + at): byte for at, byte in enumerate(hidden)
    }


ALPHABET = byte_alphabet()


@dataclass(frozen=True, slots=True)
class Spelling:
    """How a token becomes bytes. It does not depend on neighbours: decoding is concatenation.

    The one exception is the leading space that an encoder adds and `strips_space` removes.
    """

    byte_level: bool = False  # tokens are in the byte alphabet
    byte_fallback: bool = False  # a token like <0x0A> is one byte
    replacements: tuple[tuple[str, str], ...] = ()
    strips_space: bool = False
    continuation: str = ""  # what marks a token that continues a word; others begin with a space
    spaced: bool = False  # every token begins with a space

    def bytes_of(self, token: str, *, added: bool) -> bytes:
        """Return the bytes of a token. Added tokens are not in the byte alphabet."""
        if self.spaced:
            return f" {token}".encode()
        if self.byte_level:
            if added or not ALPHABET.keys() >= set(token):
                return token.encode()
            return bytes(ALPHABET[character] for character in token)
        if self.byte_fallback and (single := BYTE_TOKEN.fullmatch(token)):
            return bytes.fromhex(single[1])
        for old, new in self.replacements:
            token = token.replace(old, new)
        if self.continuation and not added:
            begins = not token.startswith(self.continuation)
            token = f" {token}" if begins else token.removeprefix(self.continuation)
        return token.encode()


def spelling_of(backend: Backend, origin: str = "the tokenizer") -> Spelling:
    """Read how a tokenizer decodes. Decoders that are not a concatenation are refused."""
    if backend.decoder is None:  # the library joins tokens with spaces
        return Spelling(spaced=True, strips_space=True)
    outer: dict[str, Any] = json.loads(backend.decoder.__getstate__())
    steps: list[dict[str, Any]] = outer["decoders"] if outer["type"] == "Sequence" else [outer]
    replacements: list[tuple[str, str]] = []
    byte_level = byte_fallback = strips_space = False
    continuation = ""
    for step in steps:
        match step:
            case {"type": "ByteLevel"}:
                byte_level = True
            case {"type": "ByteFallback"}:
                byte_fallback = True
            case {"type": "Fuse"}:
                pass
            case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)}:
                replacements.append((old, new))
            case {"type": "Strip", "content": " ", "start": 1, "stop": 0}:
                strips_space = True
            case {"type": "Metaspace", "replacement": str(mark), "prepend_scheme": scheme}:
                replacements.append((mark, " "))
                strips_space = scheme != "never"
            case {"type": "WordPiece", "prefix": str(prefix)}:
                continuation, strips_space = prefix, True
            case _:
                raise ConfigError(
                    f"{origin} has the decoder {json.dumps(step)}, which is not supported; "
                    f"supported are {DECODERS}: use a tokenizer.json with these"
                )
    return Spelling(byte_level, byte_fallback, tuple(replacements), strips_space, continuation)
