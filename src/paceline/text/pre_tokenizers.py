"""How byte-level tokenizers split text before merging, by the names that GGUF files use."""

from dataclasses import dataclass

from paceline.core.errors import ConfigError

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
SINGLE_DIGITS = r"\p{N}"
CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = rf"{CONTRACTION}|{WORD}|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{SPACES}"
QWEN2 = rf"{CONTRACTION}|{WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{SPACES}"
UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*"
    rf"|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{SPACES}"
)
# The same, with contractions behind words and up to three digits.
GPT4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{CONTRACTION}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{CONTRACTION}?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{SPACES}"
)


@dataclass(frozen=True, slots=True)
class SplitRules:
    """Patterns applied in order. Each match, and the text between two matches, is one piece."""

    patterns: tuple[str, ...]
    composes: bool = False  # text is normalised to NFC first
    keeps_words: bool = False  # a piece that is a token is not merged from parts
    adds_bos: bool = False  # unless the file says otherwise


SPLIT_RULES = {
    "default": SplitRules((GPT2,)),
    "gpt-2": SplitRules((GPT2,)),
    "olmo": SplitRules((GPT2,)),
    "exaone4": SplitRules((GPT2,)),
    "smollm": SplitRules((SINGLE_DIGITS, GPT2)),
    "starcoder": SplitRules((SINGLE_DIGITS, GPT2)),
    "refact": SplitRules((SINGLE_DIGITS, GPT2)),  # of Granite
    "command-r": SplitRules((SINGLE_DIGITS, GPT2)),
    "llama-bpe": SplitRules((LLAMA3,), keeps_words=True, adds_bos=True),
    "llama-v3": SplitRules((LLAMA3,), keeps_words=True, adds_bos=True),
    "llama3": SplitRules((LLAMA3,), keeps_words=True, adds_bos=True),
    "glm4": SplitRules((LLAMA3,)),
    "chatglm-bpe": SplitRules((LLAMA3,)),
    "gpt-4o": SplitRules((GPT4O,)),
    "llama4": SplitRules((GPT4O,)),
    "tekken": SplitRules((TEKKEN,), keeps_words=True, adds_bos=True),
    "qwen2": SplitRules((QWEN2,), composes=True),
    "deepseek-r1-qwen": SplitRules((QWEN2,), composes=True),
}


def split_rules(name: str) -> SplitRules:
    if name not in SPLIT_RULES:
        raise ConfigError(
            f"pre-tokenizer {name!r} is not supported; supported are "
            f"{', '.join(sorted(SPLIT_RULES))}"
        )
    return SPLIT_RULES[name]
