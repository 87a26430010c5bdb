import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from paceline.core.errors import ConfigError
from paceline.text.hf_folder import hf_vocabulary
from paceline.text.tokenizer import Tokenizer
from paceline.text.vocabulary import frame
from tests.text.support import byte_level, random_texts


def write(folder: Path, name: str, content: Any) -> None:
    folder.joinpath(name).write_text(json.dumps(content), encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    byte_level("smollm").save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def test_a_folder_that_transformers_wrote_encodes_as_it_does(tmp_path: Path) -> None:
    made = PreTrainedTokenizerFast(
        tokenizer_object=byte_level("llama-bpe"), bos_token="<s>", eos_token="</s>"
    )
    made.chat_template = "{{ messages }}"
    made.save_pretrained(tmp_path)
    ours, theirs = Tokenizer.load(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    for text in random_texts(300):
        ids = theirs.encode(text)
        assert ours.encode(text) == ids, text
        assert ours.decode(ids, skip_special=False) == theirs.decode(ids), text
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True), text
    assert (ours.bos, ours.eos) == (theirs.bos_token_id, (theirs.eos_token_id,))
    assert ours.chat_template == "{{ messages }}"
    assert ours.vocab_size == len(theirs)


@pytest.mark.parametrize("framed", [True, False])
def test_the_tokenizer_file_says_what_frames_a_text(tmp_path: Path, framed: bool) -> None:
    backend = type(byte_level()).from_str(byte_level().to_str())
    frame(backend, 0 if framed else None, None)
    backend.save(str(tmp_path / "tokenizer.json"))
    settings = {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": not framed}
    write(tmp_path, "tokenizer_config.json", {**settings, "tokenizer_class": "TokenizersBackend"})
    ours, theirs = Tokenizer.load(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    assert ours.encode("the fox") == theirs.encode("the fox")
    assert ours.class_name == type(theirs).__name__ == "TokenizersBackend"
    assert (ours.encode("the fox")[0] == ours.bos) is framed


def test_ends_come_from_all_the_files(folder: Path) -> None:
    assert hf_vocabulary(folder).eos == ()
    assert hf_vocabulary(folder).bos is None
    write(folder, "config.json", {"eos_token_id": 7, "bos_token_id": 5})
    assert hf_vocabulary(folder).eos == (7,)
    assert hf_vocabulary(folder).bos == 5
    write(folder, "generation_config.json", {"eos_token_id": [9, 1, 2]})
    assert hf_vocabulary(folder).eos == (9, 1, 2)
    write(folder, "tokenizer_config.json", {"eos_token": {"content": "</s>"}, "bos_token": "<s>"})
    assert hf_vocabulary(folder).eos == (1, 9, 2)
    assert hf_vocabulary(folder).bos == 0


def test_sampling_parameters_are_recommended_by_a_file_of_their_own(folder: Path) -> None:
    assert hf_vocabulary(folder).recommended == {}
    write(folder, "config.json", {"temperature": 0.1})
    write(folder, "generation_config.json", {"temperature": 0.6, "top_k": 20, "top_p": None})
    assert hf_vocabulary(folder).recommended == {"temperature": 0.6, "top_k": 20}


def test_ids_are_those_of_the_model_which_may_have_more(folder: Path) -> None:
    tokens = Tokenizer.load(folder).vocab_size
    write(folder, "config.json", {"vocab_size": tokens + 64})
    assert Tokenizer.load(folder).vocab_size == tokens + 64


def test_a_template_in_a_file_counts_before_the_one_in_the_settings(folder: Path) -> None:
    assert hf_vocabulary(folder).chat_template is None
    named = [{"name": "tools", "template": "t"}, {"name": "default", "template": "d"}]
    write(folder, "tokenizer_config.json", {"chat_template": named})
    assert hf_vocabulary(folder).chat_template == "d"
    write(folder, "tokenizer_config.json", {"chat_template": [*named[:1], {"name": "default"}]})
    assert hf_vocabulary(folder).chat_template is None
    write(folder, "tokenizer_config.json", {"chat_template": "inline"})
    assert hf_vocabulary(folder).chat_template == "inline"
    write(folder, "chat_template.json", {"chat_template": "with images"})
    assert hf_vocabulary(folder).chat_template == "with images"
    (folder / "chat_template.jinja").write_text("file ▁", encoding="utf-8")
    assert hf_vocabulary(folder).chat_template == "file ▁"


def test_a_template_for_tools_has_its_own_name(folder: Path) -> None:
    named = [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}]
    write(folder, "tokenizer_config.json", {"chat_template": named})
    assert hf_vocabulary(folder).tool_template == "t"
    assert Tokenizer.load(folder).tool_template == "t"
    assert Tokenizer.load(folder, "another").tool_template is None
    write(folder, "tokenizer_config.json", {"chat_template": "inline"})
    assert hf_vocabulary(folder).tool_template is None
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("file ▁", encoding="utf-8")
    assert hf_vocabulary(folder).tool_template == "file ▁"


def test_limits_of_length_do_not_cut_prompts(tmp_path: Path) -> None:
    backend = type(byte_level()).from_str(byte_level().to_str())
    backend.enable_truncation(3)
    backend.enable_padding(length=8)
    backend.save(str(tmp_path / "tokenizer.json"))
    text = "the quick brown fox 1234"
    assert Tokenizer.load(tmp_path).encode(text) == byte_level().encode(text).ids


def test_what_is_missing_or_broken_is_named(folder: Path, tmp_path: Path) -> None:
    write(folder, "generation_config.json", [1])
    with pytest.raises(ConfigError, match=r"generation_config\.json is not a JSON object"):
        hf_vocabulary(folder)
    (folder / "generation_config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"generation_config\.json is not complete"):
        hf_vocabulary(folder)
    (folder / "generation_config.json").unlink()
    write(folder, "tokenizer_config.json", {"chat_template": {"default": "d"}})
    with pytest.raises(ConfigError, match=r"chat_template in tokenizer_config\.json is neither"):
        hf_vocabulary(folder)
    write(folder, "tokenizer.json", {})
    with pytest.raises(ConfigError, match=r"tokenizer\.json is not a valid tokenizer"):
        hf_vocabulary(folder)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ConfigError, match=r"has no tokenizer\.json"):
        hf_vocabulary(folder)


def test_the_size_of_a_vocabulary_may_be_beside_that_of_a_vision_tower(folder: Path) -> None:
    write(folder, "config.json", {"text_config": {"vocab_size": 1000}, "vision_config": {}})
    assert hf_vocabulary(folder).size == 1000


def without_decoder(folder: Path) -> list[int]:
    """Write a word-level tokenizer, and return ids with an added token between."""
    backend = Backend(models.WordLevel({"<unk>": 0, "the": 1, "quick": 2, "fox": 3}, "<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.add_special_tokens(["<s>"])
    backend.save(str(folder / "tokenizer.json"))
    return backend.encode("<s>the quick<s>fox").ids


def test_without_a_decoder_tokens_have_spaces_between_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ids = without_decoder(tmp_path)
    ours = Tokenizer.load(tmp_path)
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True) == "the quick fox"
    assert ours.decode(ids, skip_special=False) == theirs.decode(ids) == "<s> the quick <s> fox"
    (record,) = caplog.records
    assert f"{tmp_path / 'tokenizer.json'} has no decoder" in record.getMessage()
    assert "add the `decoder`" in record.getMessage()


def test_a_decoder_that_cannot_be_used_is_named_with_its_file(tmp_path: Path) -> None:
    without_decoder(tmp_path)
    document = json.loads((tmp_path / "tokenizer.json").read_text())
    decoder = {"type": "BPEDecoder", "suffix": "</w>"}
    write(tmp_path, "tokenizer.json", {**document, "decoder": decoder})
    with pytest.raises(ConfigError, match=r"tokenizer\.json has the decoder .*BPEDecoder.* use a"):
        Tokenizer.load(tmp_path)
