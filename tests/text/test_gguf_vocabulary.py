from itertools import pairwise
from pathlib import Path
from typing import Any

import gguf
import pytest
from transformers import AutoTokenizer

from paceline.core.errors import ConfigError
from paceline.core.system.gguf import read_metadata
from paceline.text.gguf_vocabulary import gguf_vocabulary, vocabulary_of
from paceline.text.tokenizer import Tokenizer
from tests.text.support import (
    PRE_TOKENIZERS,
    byte_level,
    byte_level_entries,
    random_texts,
    sentence_piece_entries,
    sentence_pieces,
    write_gguf,
)


def byte_level_file(folder: Path, pre: str = "gpt-2", **changes: Any) -> Path:
    return write_gguf(folder / "b.gguf", "gpt2", **{**byte_level_entries(pre), **changes})


def sentence_piece_file(folder: Path, **changes: Any) -> Path:
    return write_gguf(folder / "s.gguf", "llama", **{**sentence_piece_entries(), **changes})


@pytest.mark.parametrize("pre", PRE_TOKENIZERS)
def test_a_byte_level_vocabulary_encodes_as_it_was_trained(tmp_path: Path, pre: str) -> None:
    ours, theirs = Tokenizer.load(byte_level_file(tmp_path, pre)), byte_level(pre)
    for text in random_texts(400):
        assert ours.encode(text, special=False) == theirs.encode(text).ids, text


@pytest.mark.parametrize("pre", ["default", "llama-bpe", "qwen2", "tekken"])
def test_transformers_reads_the_same_file_the_same_way(tmp_path: Path, pre: str) -> None:
    file = byte_level_file(tmp_path, pre, add_bos_token=False)
    theirs = AutoTokenizer.from_pretrained(tmp_path, gguf_file=file.name)
    ours = Tokenizer.load(file)
    texts = list(random_texts(200))
    if pre == "qwen2":  # it does not compose letters and accents for a file of llama's kind
        texts = [text for text in texts if "\u0301" not in text and "\u212b" not in text]
    for text in texts:
        assert ours.encode(text) == theirs.encode(text, add_special_tokens=False), text


def merged(text: str, prefix: bool = True) -> list[int]:
    """SentencePiece as its paper has it: merge the best pair of neighbours until none is left."""
    pieces = sentence_pieces()
    ids = {token: at for at, token in enumerate(pieces.tokens)}
    normal = {
        token: pieces.scores[at]
        for token, at in ids.items()
        if pieces.types[at] == gguf.TokenType.NORMAL
    }
    symbols = list((" " + text if prefix and text else text).replace(" ", "▁"))
    while pairs := [
        (-normal[left + right], at)
        for at, (left, right) in enumerate(pairwise(symbols))
        if left + right in normal and left in normal and right in normal
    ]:
        _, at = min(pairs)
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
    return [
        id
        for symbol in symbols
        for id in (
            [ids[symbol]]
            if symbol in normal
            else [ids[f"<0x{byte:02X}>"] for byte in symbol.encode()]
        )
    ]


@pytest.mark.parametrize("prefix", [True, False])
def test_a_sentence_piece_vocabulary_encodes_as_the_definition(
    tmp_path: Path, prefix: bool
) -> None:
    ours = Tokenizer.load(sentence_piece_file(tmp_path, add_space_prefix=prefix))
    for text in random_texts(400):
        if not any(token in text for token in ("<s>", "</s>", "<end>", "<think>", "<unk>")):
            assert ours.encode(text, special=False) == merged(text, prefix), text


def test_equal_scores_merge_the_lower_id_first(tmp_path: Path) -> None:
    tokens = ["<unk>", "ab", "bc", "a", "b", "c"]
    file = write_gguf(
        tmp_path / "tie.gguf",
        "llama",
        tokens=tokens,
        scores=[0.0] * 6,
        token_type=[2, 1, 1, 1, 1, 1],
        add_space_prefix=False,
        add_bos_token=False,
    )
    assert Tokenizer.load(file).encode("abc") == [1, 5]


def test_merges_may_be_listed(tmp_path: Path) -> None:
    """By score, `ab` would be first."""
    file = write_gguf(
        tmp_path / "listed.gguf",
        "gemma4",
        tokens=["<unk>", "ab", "bc", "a", "b", "c", "▁"],
        merges=["b c", "a b"],
        scores=[0.0] * 7,
        token_type=[2, 1, 1, 1, 1, 1, 1],
        add_space_prefix=False,
        add_bos_token=False,
    )
    assert Tokenizer.load(file).encode("abc ab") == [3, 2, 6, 1]


def test_a_token_that_is_unused_still_leads_to_longer_ones(tmp_path: Path) -> None:
    file = write_gguf(
        tmp_path / "unused.gguf",
        "llama",
        tokens=["<unk>", "abc", "ab", "a", "b", "c"],
        scores=[0.0] * 6,
        token_type=[2, 1, 5, 1, 1, 1],
        add_space_prefix=False,
        add_bos_token=False,
    )
    assert Tokenizer.load(file).encode("abc") == [1]


def test_a_space_comes_first_unless_the_file_says_otherwise(tmp_path: Path) -> None:
    entries: dict[str, Any] = {
        "tokens": ["<unk>", "▁", "a"],
        "scores": [0.0] * 3,
        "token_type": [2, 1, 1],
        "add_bos_token": False,
        "unknown_token_id": 0,
    }
    ours = Tokenizer.load(write_gguf(tmp_path / "first.gguf", "llama", **entries))
    assert ours.encode("a") == [1, 2]
    assert ours.decode([1, 2]) == "a"
    file = write_gguf(tmp_path / "bare.gguf", "llama", **entries, add_space_prefix=False)
    assert Tokenizer.load(file).encode("a") == [2]
    # Without tokens for bytes, neighbours that are unknown are one, and it is no text.
    assert Tokenizer.load(file).encode("axyza") == [2, 0, 2]
    assert Tokenizer.load(file).special == {0}


def test_control_tokens_are_found_in_text_and_hidden_from_it(tmp_path: Path) -> None:
    for file in (byte_level_file(tmp_path), sentence_piece_file(tmp_path)):
        ours = Tokenizer.load(file)
        ids = ours.encode("the<end>fox<think>", special=False)
        end, think = (ours.encode(t, special=False)[-1] for t in ("<end>", "<think>"))
        assert end in ids
        assert ids[-1] == think
        assert end in ours.special
        assert think not in ours.special
        assert "<end>" not in ours.decode(ids)
        assert ours.decode(ids).endswith("<think>")
        assert "<end>" in ours.decode(ids, skip_special=False)


def test_text_that_looks_like_a_byte_token_is_text(tmp_path: Path) -> None:
    ours = Tokenizer.load(sentence_piece_file(tmp_path))
    assert ours.decode(ours.encode("<0x41>")) == "<0x41>"
    tokens = ["<unk>", "<0x41>", "<", "0", "x", "4", "1", ">", "<0", "<0x", "<0x4", "<0x41"]
    file = write_gguf(
        tmp_path / "bytes.gguf",
        "llama",
        tokens=tokens,
        scores=[0.0] * len(tokens),
        token_type=[2, 6, *[1] * 10],
        add_space_prefix=False,
    )
    assert Tokenizer.load(file).encode("<0x41>") == [11, 7]


@pytest.mark.parametrize(("pre", "ids"), [("llama-bpe", [3]), ("gpt-2", [0, 1, 2])])
def test_a_word_that_is_a_token_stays_whole_where_the_kind_says_so(
    tmp_path: Path, pre: str, ids: list[int]
) -> None:
    file = write_gguf(
        tmp_path / "whole.gguf",
        "gpt2",
        pre=pre,
        tokens=["a", "b", "c", "abc", "bb"],
        token_type=[1] * 5,
        merges=["b b"],
    )
    assert Tokenizer.load(file).encode("abc") == ids


@pytest.mark.parametrize(
    ("make", "pre", "changes", "framed"),
    [
        (byte_level_file, "gpt-2", {}, [None, None]),
        (byte_level_file, "llama-bpe", {}, ["<s>", None]),
        (byte_level_file, "llama-bpe", {"add_bos_token": False}, [None, None]),
        (byte_level_file, "gpt-2", {"add_bos_token": True}, ["<s>", None]),
        (byte_level_file, "gpt-2", {"add_bos_token": True, "add_eos_token": True}, ["<s>", "</s>"]),
        (byte_level_file, "gpt-2", {"add_eos_token": True}, [None, "</s>"]),
        (sentence_piece_file, None, {}, ["<s>", None]),
        (sentence_piece_file, None, {"add_bos_token": False}, [None, None]),
    ],
)
def test_a_text_is_framed_as_the_file_or_its_kind_says(
    tmp_path: Path, make: Any, pre: str | None, changes: dict[str, Any], framed: list[str | None]
) -> None:
    ours = Tokenizer.load(make(tmp_path, *([pre] if pre else []), **changes))
    inner = ours.encode("the fox", special=False)
    before, after = ([ours.encode(t, special=False)[-1]] if t else [] for t in framed)
    assert ours.encode("the fox") == [*before, *inner, *after]


def test_ends_are_those_named_and_those_known_by_their_text(tmp_path: Path) -> None:
    file = write_gguf(
        tmp_path / "ends.gguf",
        "gpt2",
        tokens=["<s>", "</s>", "<|im_end|>", "<end_of_turn>", "a", "b", "<|eot_id|>", "ab"],
        # A user-defined token is text, whatever it is called.
        token_type=[3, 3, 3, 4, 1, 1, 3, 1],
        merges=["a b"],
        eos_token_id=1,
        eot_token_id=5,
    )
    found = gguf_vocabulary(file)
    assert found.bos is None
    assert found.eos == (1, 5, 2, 6)


def test_an_end_that_is_no_token_is_none(tmp_path: Path) -> None:
    tokens = len(byte_level_entries("gpt-2")["tokens"])
    plain = gguf_vocabulary(byte_level_file(tmp_path))
    for wrong in (tokens, 2**32 - 1):
        file = byte_level_file(tmp_path, eot_token_id=wrong, eom_token_id=wrong)
        assert gguf_vocabulary(file).eos == plain.eos


def test_the_chat_template_comes_along(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "c.gguf", "llama")
    tool_use = {"name": "tool_use", "template": "{{ tools }}"}
    writer.add_chat_template([{"name": "default", "template": "{{ messages }}"}, tool_use])
    writer.add_tokenizer_model("llama")
    entries = sentence_piece_entries()
    writer.add_token_list(entries["tokens"])
    writer.add_token_scores(entries["scores"])
    writer.add_token_types(entries["token_type"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    found = gguf_vocabulary(tmp_path / "c.gguf")
    assert (found.chat_template, found.tool_template) == ("{{ messages }}", "{{ tools }}")
    without = gguf_vocabulary(sentence_piece_file(tmp_path))
    assert (without.chat_template, without.tool_template) == (None, None)


@pytest.mark.parametrize(
    ("model", "changes", "complaint"),
    [
        ("bert", {}, "tokenizer.ggml.model is 'bert'; only"),
        ("gpt2", {"pre": "klingon"}, "pre-tokenizer 'klingon' is not supported.*llama-bpe"),
        ("gpt2", {"tokens": [1, 2]}, r"tokenizer\.ggml\.tokens .* list of str"),
        ("gpt2", {"tokens": ["a"]}, r"token_type has \d+ entries for 1 tokens"),
        ("gpt2", {"bos_token_id": "one"}, r"bos_token_id is 'one'; it must be a int"),
        ("gpt2", {"merges": ["a b c"]}, "is not a valid tokenizer"),
        ("gpt2", {"merges": ["a unheard-of"]}, "is not a valid tokenizer: .*unheard-of"),
        ("llama", {}, r"tokenizer\.ggml\.scores is missing"),
    ],
)
def test_what_is_wrong_is_named(
    tmp_path: Path, model: str, changes: dict[str, Any], complaint: str
) -> None:
    entries = {**byte_level_entries("gpt-2"), **changes}
    with pytest.raises(ConfigError, match=complaint):
        gguf_vocabulary(write_gguf(tmp_path / "bad.gguf", model, **entries))


def test_a_file_without_a_vocabulary_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tokenizer\.ggml\.tokens is missing"):
        gguf_vocabulary(write_gguf(tmp_path / "none.gguf", "gpt2"))


def test_a_file_may_recommend_sampling_parameters(tmp_path: Path) -> None:
    metadata = read_metadata(byte_level_file(tmp_path))
    assert vocabulary_of(metadata).recommended == {}
    given = {"general.sampling.temp": 0.699999988079071, "general.sampling.top_k": 20}
    recommended = vocabulary_of({**metadata, **given}).recommended
    assert recommended == {"temperature": 0.7, "top_k": 20}
