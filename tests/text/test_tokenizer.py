import json
from pathlib import Path
from threading import Thread
from time import sleep

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend

from paceline.core.errors import ConfigError, RequestError
from paceline.text.tokenizer import Tokenizer
from paceline.text.vocabulary import Vocabulary
from tests.text.support import (
    byte_level,
    ours,
    random_texts,
    sentence_piece_entries,
    sentence_pieces,
    write_gguf,
)

BYTE_LEVEL = ours(byte_level())


@pytest.fixture(scope="module")
def marked(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("marked")
    return Tokenizer.load(write_gguf(folder / "s.gguf", "llama", **sentence_piece_entries()))


def test_both_kinds_give_back_what_they_were_given(marked: Tokenizer) -> None:
    for text in random_texts(300):
        assert BYTE_LEVEL.decode(BYTE_LEVEL.encode(text), skip_special=False) == text
        if not any(token in text for token in ("<s>", "</s>", "<end>", "<think>", "▁")):
            assert marked.decode(marked.encode(text)) == text


@settings(deadline=None)
@given(st.lists(st.integers(0, BYTE_LEVEL.vocab_size - 1)), st.booleans())
def test_byte_level_ids_decode_as_in_the_library(ids: list[int], skip: bool) -> None:
    assert BYTE_LEVEL.decode(ids, skip) == byte_level().decode(ids, skip_special_tokens=skip)


def test_marked_ids_decode_as_in_the_library(marked: Tokenizer) -> None:
    backend = marked._backend  # type: ignore[reportPrivateUsage]
    for text in random_texts(300):
        ids = marked.encode(text)
        for skip in (True, False):
            assert marked.decode(ids, skip) == backend.decode(ids, skip_special_tokens=skip)


def test_bytes_that_are_no_text_become_replacement_characters(marked: Tokenizer) -> None:
    byte = {value: 5 + value for value in range(256)}
    assert marked.token_bytes(byte[0xE4]) == b"\xe4"
    cat = [byte[value] for value in "猫".encode()]
    assert marked.decode(cat) == "猫"
    assert marked.decode(cat[:2]) == "\ufffd"
    assert marked.decode([*cat, byte[0xFF], *cat]) == "猫\ufffd猫"


def test_one_token_shows_its_space(marked: Tokenizer) -> None:
    word = next(at for at, token in enumerate(sentence_pieces().tokens) if token.startswith("▁t"))
    assert marked.token(word).startswith(" t")
    assert marked.decode([word]) == marked.token(word)[1:]
    assert marked.token(1) == "<s>"
    first = byte_level().token_to_id("Ġthe")
    assert first is not None
    assert BYTE_LEVEL.token(first) == BYTE_LEVEL.decode([first]) == " the"


def test_special_tokens_by_name() -> None:
    assert (BYTE_LEVEL.bos_token, BYTE_LEVEL.eos_token) == ("<s>", "</s>")
    assert BYTE_LEVEL.special == {0, 1, 2}
    assert ours(byte_level(), eos=[]).eos_token == ""


def test_an_id_without_a_token_is_no_text() -> None:
    assert BYTE_LEVEL.decode([BYTE_LEVEL.vocab_size, 10**6]) == ""
    assert BYTE_LEVEL.token(BYTE_LEVEL.vocab_size) == ""


@pytest.mark.parametrize("wrong", [-1, 2**40, "a", 1.5])
def test_what_cannot_be_an_id_is_refused(wrong: int) -> None:
    with pytest.raises(RequestError, match="is not a token id"):
        BYTE_LEVEL.decode([wrong])


def test_half_a_surrogate_pair_is_the_clients_fault() -> None:
    with pytest.raises(RequestError, match="character 3 is an unpaired surrogate"):
        BYTE_LEVEL.encode("abc\ud800")


def test_ids_are_those_that_the_model_has(tmp_path: Path) -> None:
    byte_level().save(str(tmp_path / "tokenizer.json"))
    for size in (200, 5000):
        (tmp_path / "config.json").write_text(json.dumps({"vocab_size": size}))
        assert Tokenizer.load(tmp_path).vocab_size == size


def test_a_path_to_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nothing is neither a GGUF file nor a folder"):
        Tokenizer.load(tmp_path / "nothing")
    (tmp_path / "text.gguf").write_text("no model")
    with pytest.raises(ConfigError, match="cannot be read as GGUF"):
        Tokenizer.load(str(tmp_path / "text.gguf"))


def test_an_added_token_is_written_as_it_is() -> None:
    backend = Backend.from_str(byte_level().to_str())
    backend.add_tokens(["caf\u00e9"])
    tokenizer = ours(backend)
    (id,) = tokenizer.encode("caf\u00e9", special=False)
    assert tokenizer.decode([id]) == "caf\u00e9"


def test_no_token_is_longer_than_the_longest() -> None:
    lengths = [len(BYTE_LEVEL.token_bytes(id)) for id in range(BYTE_LEVEL.vocab_size)]
    assert BYTE_LEVEL.longest == max(lengths) > min(lengths)


def test_other_threads_run_while_a_long_text_is_read() -> None:
    reader, text = BYTE_LEVEL, "the quick brown fox, 123 jumps\n" * 8000
    found: list[int] = []
    reading = Thread(target=lambda: found.extend(reader.encode(text, special=False)))
    reading.start()
    turns = 0
    while reading.is_alive():
        sleep(0)
        turns += 1
    assert turns > 50
    line = reader.encode("the quick brown fox, 123 jumps\n", special=False)
    assert found[: len(line)] == line
    assert reader.decode(found) == text


def test_a_conversation_is_rendered_as_in_transformers() -> None:
    source = "{{ bos_token }}{{ messages[0].content }}{{ mood }}{{ add_generation_prompt }}"
    tokenizer = Tokenizer(Vocabulary(byte_level(), 0, (1, 2), source))
    chat = [{"role": "user", "content": "hello"}]
    assert tokenizer.apply_chat_template(chat, tokenize=False, mood="!") == "<s>hello!False"
    own = tokenizer.apply_chat_template(chat, add_generation_prompt=True, chat_template="{{ 1 }}")
    assert own == "1"
    with pytest.raises(RequestError, match="encode the text with special=False"):
        tokenizer.apply_chat_template(chat, tokenize=True)  # type: ignore[arg-type]
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (0, 1)
    assert Tokenizer(Vocabulary(byte_level(), None, (), None)).eos_token_id is None


@pytest.mark.parametrize("tools", [None, "{{ tools }}"])
def test_a_tokenizer_is_written_as_it_was_read(tmp_path: Path, tools: str | None) -> None:
    vocabulary = Vocabulary(byte_level(), 0, (1,), "{{ messages }}", tool_template=tools)
    ours = Tokenizer(vocabulary)
    for name, text in ours.files().items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    read = Tokenizer.load(tmp_path)
    assert (read.chat_template, read.tool_template) == ("{{ messages }}", tools)
    assert (read.bos, read.eos) == (0, (1,))
    for text in random_texts(20):
        assert read.encode(text) == ours.encode(text)


def test_tokens_for_insertion_are_known_by_their_names() -> None:
    backend = byte_level()
    assert ours(backend).infill is None
    backend.add_special_tokens(["<|fim_prefix|>", "<|fim_middle|>"])
    assert ours(backend).infill is None
    backend.add_special_tokens(["<|fim_suffix|>"])
    found = ours(backend)
    assert found.infill is not None
    ids = found.encode(found.infill.prompt("a", "b"), special=False)
    assert [found.token(id) for id in ids if id in found.special] == [
        *("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
    ]
