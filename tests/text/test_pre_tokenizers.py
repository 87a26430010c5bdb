import pytest
from tokenizers import Regex, pre_tokenizers

from paceline.core.errors import ConfigError
from paceline.text.pre_tokenizers import split_rules


def cut(name: str, text: str) -> list[str]:
    steps = [
        pre_tokenizers.Split(Regex(pattern), behavior="isolated")
        for pattern in split_rules(name).patterns
    ]
    return [piece for piece, _ in pre_tokenizers.Sequence(steps).pre_tokenize_str(text)]


@pytest.mark.parametrize(
    ("name", "text", "pieces"),
    [
        ("gpt-2", "I'm 1234!  OK\n\n x", ["I", "'m", " 1234", "!", " ", " OK", "\n\n", " x"]),
        ("gpt-2", "IT'S", ["IT", "'", "S"]),
        ("smollm", "a 12\n\n3", ["a", " ", "1", "2", "\n\n", "3"]),
        ("llama-bpe", "IT'S 12345 ok!\n", ["IT", "'S", " ", "123", "45", " ok", "!\n"]),
        ("qwen2", "IT'S 12", ["IT", "'S", " ", "1", "2"]),
        ("gpt-4o", "fooBar's 12345/", ["foo", "Bar's", " ", "123", "45", "/"]),
        ("glm4", "IT'S 1234", ["IT", "'S", " ", "123", "4"]),
        ("tekken", "fooBar HTTPServer/", ["foo", "Bar", " HTTPServer", "/"]),
    ],
)
def test_where_text_is_cut(name: str, text: str, pieces: list[str]) -> None:
    assert cut(name, text) == pieces


@pytest.mark.parametrize(
    ("name", "same"),
    [
        ("default", "gpt-2"),
        ("llama3", "llama-bpe"),
        ("llama-v3", "llama-bpe"),
        ("deepseek-r1-qwen", "qwen2"),
        ("olmo", "gpt-2"),
        ("exaone4", "gpt-2"),
        ("refact", "smollm"),
        ("starcoder", "smollm"),
        ("command-r", "smollm"),
        ("chatglm-bpe", "glm4"),
        ("llama4", "gpt-4o"),
    ],
)
def test_names_that_mean_the_same(name: str, same: str) -> None:
    assert split_rules(name) == split_rules(same)


def test_an_unknown_name_is_refused_with_those_known() -> None:
    with pytest.raises(ConfigError, match=r"pre-tokenizer 'smolm' is not supported; .*smollm"):
        split_rules("smolm")
