"""Small vocabularies, trained or built here, as backends, as folders and as GGUF files."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import gguf
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.trainers import BpeTrainer

from paceline.text.tokenizer import Tokenizer as Ours
from paceline.text.vocabulary import Vocabulary

CORPUS = [
    "The quick brown fox jumps over the lazy dog, and the dog's owner didn't care.",
    "WE'LL see what they've done; I'm sure it's 1234567 or 3.14159, maybe 2024-06-30.",
    "def hello(name):\n    return f'hello {name}'\n\n\tprint(hello('world'))\r\n",
    "naïve café Straße Привет мир 你好世界 こんにちは 안녕하세요 שלום مرحبا हिन्दी",
    "😀 👨‍👩‍👧‍👦 🇫🇷 e\u0301 ∑∫√ ½ ² a  b   c    d",
    "hello world hello there the the the thin thing things nothing everything",
] * 4

SAMPLES = (
    "the quick fox's don't WE'LL I'm they've hello world 1 12 123 1234567 3.14 2024-06-30 "
    "naïve café Straße Привет 你好 世界 こんにちは 안녕 שלום हिन्दी 😀 👨‍👩‍👧 🇫🇷 e\u0301 \u212b ½ ² "
    "_x_ fooBar HTTPServer ... !? () {} -> // $5 100% \t \n \r\n \n\n \u00a0 \u200b \u3000 "
    "<s> </s> <end> <think> <0x41> ▁"
)
PIECES = SAMPLES.split(" ")
GAPS = ["", "", " ", " ", "  ", "   ", "\n", "\t", " \n "]

# The pieces as the models' own tokenizer files describe them, by the names of GGUF.
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}@| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
BARE_BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)


def split(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), behavior="isolated"), BARE_BYTES]
    )


PRE_TOKENIZERS: dict[str, pre_tokenizers.PreTokenizer] = {
    "gpt-2": BYTES,
    "default": BYTES,
    "smollm": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), BYTES]),
    "llama-bpe": split(WORDS.replace("@", "{1,3}")),
    "qwen2": split(WORDS.replace("@", "")),
    "glm4": split(WORDS.replace("@", "{1,3}")),
    "gpt-4o": split(
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
        r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
        r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
    "tekken": split(
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
        r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
        r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
}
SPECIAL = ["<s>", "</s>", "<end>"]
VISIBLE = ["<think>", "    "]  # added tokens that are text all the same


def random_texts(count: int, seed: int = 0) -> Iterator[str]:
    random = Random(seed)
    for _ in range(count):
        length = random.randint(0, 12)
        yield "".join(random.choice(PIECES) + random.choice(GAPS) for _ in range(length))


@cache
def byte_level(pre: str = "gpt-2") -> Tokenizer:
    """A byte-level vocabulary of a few hundred tokens, trained in milliseconds."""
    backend = Tokenizer(models.BPE(ignore_merges=pre in ("llama-bpe", "tekken")))
    if pre == "qwen2":
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = PRE_TOKENIZERS[pre]
    backend.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=600,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    backend.add_tokens([AddedToken(token, normalized=False) for token in VISIBLE])
    return backend


@dataclass(frozen=True)
class Pieces:
    """A vocabulary of the SentencePiece kind: tokens, scores and types in step."""

    tokens: list[str] = field(default_factory=list[str])
    scores: list[float] = field(default_factory=list[float])
    types: list[int] = field(default_factory=list[int])

    def add(self, token: str, score: float, kind: int) -> None:
        self.tokens.append(token)
        self.scores.append(score)
        self.types.append(kind)


@cache
def sentence_pieces() -> Pieces:
    """Frequent substrings of the corpus, the longest with the worst scores."""
    pieces = Pieces()
    pieces.add("<unk>", 0.0, gguf.TokenType.UNKNOWN)
    for token in SPECIAL:
        pieces.add(token, 0.0, gguf.TokenType.CONTROL)
    pieces.add("<think>", 0.0, gguf.TokenType.USER_DEFINED)
    for byte in range(256):
        pieces.add(f"<0x{byte:02X}>", 0.0, gguf.TokenType.BYTE)
    text = "▁".join(CORPUS[:3] + CORPUS[5:6]).replace(" ", "▁")
    text += "▁▁▁▁"
    random = Random(1)
    ranked: list[str] = []
    for length in (2, 3, 4, 5, 6):
        found = sorted({text[at : at + length] for at in range(len(text) - length)})
        ranked += random.sample(found, min(len(found), 60))
    for rank, token in enumerate(ranked):
        pieces.add(token, -float(rank), gguf.TokenType.NORMAL)
    for character in sorted(set(text)):
        pieces.add(character, -1e6, gguf.TokenType.NORMAL)
    return pieces


def write_gguf(path: Path, model: str, **entries: Any) -> Path:
    """A GGUF file without tensors; `entries` are the keys under `tokenizer.ggml`."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model(model)
    for key, value in entries.items():
        name = f"tokenizer.ggml.{key}"
        if isinstance(value, list):
            writer.add_array(name, value)
        elif isinstance(value, bool):
            writer.add_bool(name, value)
        elif isinstance(value, int):
            writer.add_uint32(name, value)
        else:
            writer.add_string(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def byte_level_entries(pre: str) -> dict[str, Any]:
    """What a converter writes down of the trained vocabulary."""
    backend = byte_level(pre)
    vocab = backend.get_vocab(with_added_tokens=True)
    tokens = sorted(vocab, key=vocab.__getitem__)
    kinds = dict.fromkeys(SPECIAL, gguf.TokenType.CONTROL)
    kinds |= dict.fromkeys(VISIBLE, gguf.TokenType.USER_DEFINED)
    merges = json.loads(backend.to_str())["model"]["merges"]
    return {
        "pre": pre,
        "tokens": tokens,
        "token_type": [int(kinds.get(token, gguf.TokenType.NORMAL)) for token in tokens],
        "merges": [" ".join(merge) for merge in merges],
        "bos_token_id": 0,
        "eos_token_id": 1,
    }


def sentence_piece_entries() -> dict[str, Any]:
    pieces = sentence_pieces()
    return {
        "tokens": pieces.tokens,
        "scores": pieces.scores,
        "token_type": [int(kind) for kind in pieces.types],
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
    }


def ours(backend: Tokenizer, eos: Sequence[int] = (1,)) -> Ours:
    return Ours(Vocabulary(backend, 0, tuple(eos), None))
