"""What Dynamo's frontend reads of a model."""

import json
from pathlib import Path
from typing import Any

import pytest

from paceline.integrations.dynamo.worker import card_folder
from paceline.text.tokenizer import Tokenizer
from tests.engine.support import tokenizer


def content(folder: Path, name: str) -> dict[str, Any]:
    return json.loads((folder / name).read_text())


@pytest.mark.parametrize("own", [{}, {"model_type": "qwen3", "architectures": ["Qwen3"]}])
def test_a_card_has_tokenizer_template_and_end_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: dict[str, Any]
) -> None:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    if own:
        (tmp_path / "config.json").write_text(json.dumps({**own, "eos_token_id": 7}))
    card = card_folder(tmp_path, tokenizer(), 512)
    config = content(card, "config.json")
    assert {**config, **own} == config
    assert {"model_type", "architectures"} <= config.keys()  # Dynamo needs them
    assert (config["eos_token_id"], config["max_position_embeddings"]) == ([1], 512)
    assert content(card, "generation_config.json")["eos_token_id"] == [1]
    read = Tokenizer.load(card)
    text = "the quick fox <|im_end|> didn't"
    assert read.encode(text) == tokenizer().encode(text)
    assert read.chat_template == tokenizer().chat_template
    assert card_folder(tmp_path, tokenizer(), 512) == card  # for every worker
    assert card_folder(tmp_path, tokenizer(), 256) != card
