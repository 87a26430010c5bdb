"""Encoders against transformers, through LLM."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from paceline import LLM, ConfigError
from tests.runner.encoders.support import saved_encoder, tokenizer, with_pooling

TEXTS = ["the cat sat on the mat", "dog", "a dog sat", "the mat", "cats on the dogs on the mat a"]
EMBEDDERS = ("BertModel", "RobertaModel", "XLMRobertaModel")
CLASSIFIERS = ("BertForSequenceClassification", "RobertaForSequenceClassification")


@torch.inference_mode()
def states(model: Any, text: str) -> np.ndarray:
    ids = torch.tensor([tokenizer().encode(text).ids])
    return model(ids).last_hidden_state[0].numpy()


def pooled_by(mode: str, states: np.ndarray) -> np.ndarray:
    return {"cls": states[0], "mean": states.mean(0), "last": states[-1]}[mode]


@pytest.mark.parametrize("mode", ["cls", "mean", "last"])
@pytest.mark.parametrize("architecture", EMBEDDERS)
def test_embeddings_are_those_of_transformers(tmp_path: Path, architecture: str, mode: str) -> None:
    model = saved_encoder(tmp_path, architecture)
    with LLM(str(tmp_path), pooling=mode, max_num_seqs=2) as llm:
        found = llm.embed(TEXTS, normalize=False, progress=False)
    for text, output in zip(TEXTS, found, strict=True):
        assert output.outputs is not None
        due = pooled_by(mode, states(model, text))
        np.testing.assert_allclose(output.outputs.embedding, due, atol=1e-4)


@pytest.mark.parametrize("architecture", CLASSIFIERS)
@pytest.mark.parametrize("labels", [1, 3])
def test_scores_are_those_of_a_classifier(tmp_path: Path, architecture: str, labels: int) -> None:
    model = saved_encoder(tmp_path, architecture, num_labels=labels)
    with LLM(str(tmp_path)) as llm:
        found = llm.score(TEXTS[0], TEXTS[1:], progress=False)
    for text, output in zip(TEXTS[1:], found, strict=True):
        encoded = tokenizer().encode(TEXTS[0], text)
        types = {"token_type_ids": torch.tensor([encoded.type_ids])}
        with torch.inference_mode():
            logits = model(
                torch.tensor([encoded.ids]), **(types if "Bert" in architecture[:4] else {})
            ).logits[0]
        due = logits.sigmoid()[0] if labels == 1 else logits.softmax(-1)[-1]
        assert output.outputs is not None
        assert output.outputs.score == pytest.approx(float(due), abs=1e-5)


def test_files_of_sentence_transformers_are_followed(tmp_path: Path) -> None:
    model = saved_encoder(tmp_path, "BertModel")
    with_pooling(tmp_path, "mean_tokens")
    with LLM(str(tmp_path)) as llm:
        (output,) = llm.embed(TEXTS[0], progress=False)
        (cut,) = llm.embed(TEXTS[0], dimensions=4, progress=False)
    mean = states(model, TEXTS[0]).mean(0)
    assert output.outputs is not None
    assert cut.outputs is not None
    np.testing.assert_allclose(output.outputs.embedding, mean / np.linalg.norm(mean), atol=1e-4)
    np.testing.assert_allclose(
        cut.outputs.embedding, mean[:4] / np.linalg.norm(mean[:4]), atol=1e-4
    )


def test_an_encoder_generates_nothing_and_reads_no_more_than_it_can(tmp_path: Path) -> None:
    saved_encoder(tmp_path, "BertModel")
    with LLM(str(tmp_path)) as llm:
        (text,) = llm.generate("the cat", progress=False)
        assert "only makes embeddings" in text.error
        (fits, too_long) = llm.embed(["a " * 39, "a " * 40], progress=False)
        assert fits.outputs is not None
        assert fits.usage.prompt_tokens == 41
        assert "maximum context length" in too_long.error
    with pytest.raises(ConfigError, match="reads a text as a whole"):
        LLM(str(tmp_path), enable_prefix_caching=True)
    with pytest.raises(ConfigError, match="41 positions"):
        LLM(str(tmp_path), max_model_len=42)


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    saved_encoder(tmp_path, "BertModel")
    raw = (tmp_path / "config.json").read_text()
    (tmp_path / "config.json").write_text(
        raw.replace('"num_hidden_layers": 2', '"num_hidden_layers": 3')
    )
    with pytest.raises(ConfigError, match=r"missing: encoder\.layer\.2"):
        LLM(str(tmp_path))
