"""Files of EAGLE-3 heads: names, formats, and what is wrong with them."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from paceline.core.errors import ConfigError
from paceline.runner.draft_heads.eagle3_folder import Eagle3Folder
from tests.runner.eagle3 import head_folder
from tests.runner.support import tiny

MODEL = tiny()


def test_ids_that_can_be_drafted_become_token_ids(tmp_path: Path) -> None:
    head = head_folder(tmp_path, MODEL)
    drafted = load_file(head / "model.safetensors")["t2d"]
    assert Eagle3Folder(head).target_ids().tolist() == drafted.nonzero()[:, 0].tolist()


def test_files_of_torch_and_of_speculators_are_read_too(tmp_path: Path) -> None:
    head = head_folder(tmp_path / "a", MODEL)
    tensors = load_file(head / "model.safetensors")
    first = Eagle3Folder(head)
    other = tmp_path / "b"
    other.mkdir()
    (other / "config.json").write_text((head / "config.json").read_text())
    renamed = {name.replace("midlayer.", "layers.0."): one for name, one in tensors.items()}
    torch.save(renamed, other / "pytorch_model.bin")
    second = Eagle3Folder(other)
    assert first.shapes == second.shapes
    assert all(torch.equal(first.read(name), second.read(name)) for name in first.shapes)
    assert first.embedding is None


def test_a_head_may_have_an_embedding_and_every_id(tmp_path: Path) -> None:
    head = head_folder(tmp_path, MODEL, draft_vocab_size=MODEL.vocab)
    tensors = load_file(head / "model.safetensors")
    del tensors["d2t"], tensors["t2d"]
    tensors["embed_tokens.weight"] = torch.zeros(MODEL.vocab, MODEL.width)
    save_file(tensors, head / "model.safetensors")
    found = Eagle3Folder(head)
    assert found.embedding is not None
    assert found.target_ids().tolist() == list(range(MODEL.vocab))


def test_wrong_files_are_refused(tmp_path: Path) -> None:
    head = head_folder(tmp_path, MODEL)
    tensors = load_file(head / "model.safetensors")
    save_file({**tensors, "d2t": tensors["d2t"] + MODEL.vocab}, head / "model.safetensors")
    with pytest.raises(ConfigError, match="d2t names token ids outside of the 61"):
        Eagle3Folder(head).target_ids()
    del tensors["fc.weight"]
    save_file(tensors, head / "model.safetensors")
    with pytest.raises(ConfigError, match=r"missing: fc\.weight"):
        Eagle3Folder(head)
    (head / "pytorch_model.bin").write_bytes(b"not a file of torch")
    with pytest.raises(ConfigError, match=r"pytorch_model\.bin cannot be read"):
        Eagle3Folder(head)
    (head / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    with pytest.raises(ConfigError, match="num_hidden_layers"):
        Eagle3Folder(head)
