"""Converts the vocabulary of a GGUF file to a tokenizer of the `tokenizers` library."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, cast

from tokenizers import AddedToken

from paceline.core.errors import ConfigError
from paceline.core.system.gguf import Value, read_metadata
from paceline.text.pre_tokenizers import SplitRules, split_rules
from paceline.text.vocabulary import (
    Document,
    Merge,
    TokenizerParts,
    Vocabulary,
    backend_in_parts,
    frame,
)

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED = 1, 2, 3, 4, 5
MARK = "▁"  # a space in SentencePiece

# A file names one end of text, sometimes the wrong one for a chat. Control tokens with these names
# end a turn too.
ENDS = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<end_of_turn>",
    "<turn|>",
    "<|endoftext|>",
    "<|end_of_text|>",
)

# Fields below general.sampling, and their names in generation_config.json.
SAMPLING = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TokenizerEntries:
    """The fields under `tokenizer`, with checked types. Tokens and types have the same length."""

    values: Mapping[str, Value]
    tokens: list[str]
    types: list[int]

    @classmethod
    def of(cls, metadata: Mapping[str, Value]) -> "TokenizerEntries":
        tokens = row(metadata, "ggml.tokens", str)
        return cls(metadata, tokens, row(metadata, "ggml.token_type", int, len(tokens)))

    def get(self, key: str, kind: type[T], default: T) -> T:
        value = self.values.get(f"tokenizer.{key}", default)
        if not isinstance(value, kind):
            raise ConfigError(f"tokenizer.{key} is {value!r}; it must be a {kind.__name__}")
        return value

    def id(self, role: str) -> int | None:
        """The id of the token with a role, such as bos; None: there is none."""
        found = self.get(f"ggml.{role}_token_id", int, -1)
        return found if 0 <= found < len(self.tokens) else None


def row(
    metadata: Mapping[str, Value], key: str, kind: type[T], count: int | None = None
) -> list[T]:
    value = metadata.get(f"tokenizer.{key}")
    if not isinstance(value, list) or not all(isinstance(item, kind) for item in value):
        raise ConfigError(f"tokenizer.{key} is missing, or not a list of {kind.__name__}")
    if count is not None and len(value) != count:
        raise ConfigError(f"tokenizer.{key} has {len(value)} entries for {count} tokens")
    return cast(list[T], value)


def gguf_vocabulary(path: Path) -> Vocabulary:
    return vocabulary_of(read_metadata(path))


def vocabulary_of(metadata: Mapping[str, Value]) -> Vocabulary:
    entries = TokenizerEntries.of(metadata)
    bos, eos = entries.id("bos"), entries.id("eos")
    parts, adds_bos = parts_of(entries)
    backend = backend_in_parts(parts, added_tokens(entries), "tokenizer.ggml")
    frame(
        backend,
        bos if entries.get("ggml.add_bos_token", bool, adds_bos) else None,
        eos if entries.get("ggml.add_eos_token", bool, False) else None,
    )
    return Vocabulary(
        backend,
        bos,
        ends(entries),
        entries.get("chat_template", str, "") or None,
        len(entries.tokens),
        recommended_in(metadata),
        entries.get("chat_template.tool_use", str, "") or None,
    )


def recommended_in(metadata: Mapping[str, Value]) -> dict[str, Value]:
    """Sampling parameters that the file recommends, under the names of generation_config.json."""
    found = {ours: metadata.get(f"general.sampling.{key}") for key, ours in SAMPLING.items()}
    return {
        name: round(value, 6) if isinstance(value, float) else value  # 32 bits are 0.69999999
        for name, value in found.items()
        if value is not None
    }


def ends(entries: TokenizerEntries) -> tuple[int, ...]:
    named = (entries.id(role) for role in ("eos", "eot", "eom"))
    control = {
        token: at
        for at, (token, kind) in enumerate(zip(entries.tokens, entries.types, strict=True))
        if kind == CONTROL
    }
    found = [*named, *map(control.get, ENDS)]
    return tuple(dict.fromkeys(end for end in found if end is not None))


def parts_of(entries: TokenizerEntries) -> tuple[TokenizerParts, bool]:
    """The parts that depend on the kind of tokenizer, and whether that kind adds bos by default."""
    kind = entries.get("ggml.model", str, "")
    if kind == "gpt2":
        cut = split_rules(entries.get("ggml.pre", str, "default"))
        return byte_level(entries, cut), cut.adds_bos
    if kind == "llama":
        return sentence_piece(entries, implied_merges(entries)), True
    if kind == "gemma4":  # as llama, but merges are listed
        return sentence_piece(entries, listed_merges(entries)), True
    raise ConfigError(
        f"tokenizer.ggml.model is {kind!r}; only gpt2, llama and gemma4 are supported"
    )


def byte_level(entries: TokenizerEntries, cut: SplitRules) -> TokenizerParts:
    """Bytes are printable characters, and merges are listed."""
    cuts = [
        {"type": "Split", "pattern": {"Regex": one}, "behavior": "Isolated", "invert": False}
        for one in cut.patterns
    ]
    alphabet = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    rules: Document = {
        "normalizer": {"type": "NFC"} if cut.composes else None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [*cuts, {**alphabet, "use_regex": False}],
        },
        "decoder": {**alphabet, "use_regex": False},
    }
    return TokenizerParts(
        rules, words(entries), listed_merges(entries), {"ignore_merges": cut.keeps_words}
    )


def listed_merges(entries: TokenizerEntries) -> list[Merge]:
    return [pair(merge) for merge in row(entries.values, "ggml.merges", str)]


def pair(merge: str) -> Merge:
    left, _, right = merge.partition(" ")
    return left, right


def sentence_piece(entries: TokenizerEntries, merges: list[Merge]) -> TokenizerParts:
    """Spaces are marks, and unknown characters fall back to tokens of single bytes."""
    spaced = {"pattern": {"String": " "}, "content": MARK}
    unspaced = {"pattern": {"String": MARK}, "content": " "}
    normalizers: list[Document] = [{"type": "Replace", **spaced}]
    decoders: list[Document] = [
        {"type": "Replace", **unspaced},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if entries.get("ggml.add_space_prefix", bool, True):
        normalizers.insert(0, {"type": "Prepend", "prepend": MARK})
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    rules: Document = {
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": decoders},
    }
    options: Document = {"byte_fallback": True, "fuse_unk": True}
    if (unknown := entries.id("unknown")) is not None:
        options["unk_token"] = entries.tokens[unknown]
    return TokenizerParts(rules, words(entries), merges, options)


def words(entries: TokenizerEntries) -> dict[str, int]:
    return {token: at for at, token in enumerate(entries.tokens)}


def implied_merges(entries: TokenizerEntries) -> list[Merge]:
    """SentencePiece lists no merges: any two adjacent tokens that form a token merge, best first.

    The order is by score, ties by id.
    """
    scores = row(entries.values, "ggml.scores", float, len(entries.tokens))
    written = {
        token: at
        for at, (token, kind) in enumerate(zip(entries.tokens, entries.types, strict=True))
        if kind in (NORMAL, UNUSED)
    }
    by_score = sorted(written, key=lambda token: (-scores[written[token]], written[token]))
    return [pair for token in by_score for pair in halves(token, written)]


def halves(token: str, written: Mapping[str, int]) -> Iterator[Merge]:
    for at in range(1, len(token)):
        left, right = token[:at], token[at:]
        if left in written and right in written:
            yield left, right


def added_tokens(entries: TokenizerEntries) -> list[AddedToken]:
    """Tokens that are matched in the raw text first. Control tokens are special."""
    return [
        AddedToken(token, normalized=False, special=kind != USER_DEFINED)
        for token, kind in zip(entries.tokens, entries.types, strict=True)
        if kind in (UNKNOWN, CONTROL, USER_DEFINED)
    ]
