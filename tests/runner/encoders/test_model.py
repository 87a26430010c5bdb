"""Encoders against transformers, through LLM."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from paceline import LLM, ConfigError, RequestError
from paceline.runner.encoders.config import encoder_config
from paceline.wiring.encoder import completed
from tests.runner.encoders.support import (
    saved_encoder,
    tokenizer,
    with_dense,
    with_pooling,
    with_prompts,
)

TEXTS = ["the cat sat on the mat", "dog", "a dog sat", "the mat", "cats on the dogs on the mat a"]
LONG = " ".join(["the cat sat on a mat dogs"] * 4)  # longer than windows, and than near distances
EMBEDDERS = (
    "BertModel",
    "RobertaModel",
    "XLMRobertaModel",
    "DistilBertModel",
    "MPNetModel",
    "ModernBertModel",
    "Gemma3TextModel",
)
CLASSIFIERS = (
    "BertForSequenceClassification",
    "RobertaForSequenceClassification",
    "XLMRobertaForSequenceClassification",
    "DistilBertForSequenceClassification",
    "MPNetForSequenceClassification",
    "ModernBertForSequenceClassification",
)


@torch.inference_mode()
def states(model: Any, text: str) -> np.ndarray:
    ids = torch.tensor([tokenizer().encode(text).ids])
    return model(ids, **positions(model, ids)).last_hidden_state[0].numpy()


def positions(model: Any, ids: torch.Tensor) -> dict[str, torch.Tensor]:
    """MPNet and XLM-RoBERTa take token 1 for padding, which is [CLS] here, unless positions are
    given."""
    if not type(model).__name__.startswith(("MPNet", "XLMRoberta")):
        return {}
    return {"position_ids": torch.arange(2, ids.shape[1] + 2)[None]}


def pooled_by(mode: str, states: np.ndarray) -> np.ndarray:
    return {"cls": states[0], "mean": states.mean(0), "last": states[-1]}[mode]


@pytest.mark.parametrize("mode", ["cls", "mean", "last"])
@pytest.mark.parametrize("architecture", EMBEDDERS)
def test_embeddings_are_those_of_transformers(tmp_path: Path, architecture: str, mode: str) -> None:
    model = saved_encoder(tmp_path, architecture)
    texts = [*TEXTS, LONG]
    with LLM(str(tmp_path), pooling=mode, max_num_seqs=2) as llm:
        found = llm.embed(texts, normalize=False, progress=False)
    for text, output in zip(texts, found, strict=True):
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
        ids = torch.tensor([encoded.ids])
        own = positions(model, ids)
        if architecture.startswith("Bert"):
            own = {"token_type_ids": torch.tensor([encoded.type_ids])}
        with torch.inference_mode():
            logits = model(ids, **own).logits[0]
        due = logits.sigmoid()[0] if labels == 1 else logits.softmax(-1)[-1]
        assert output.outputs.score == pytest.approx(float(due), abs=1e-5)


def test_files_of_sentence_transformers_are_followed(tmp_path: Path) -> None:
    model = saved_encoder(tmp_path, "BertModel")
    with_pooling(tmp_path, "mean_tokens")
    with LLM(str(tmp_path)) as llm:
        (output,) = llm.embed(TEXTS[0], progress=False)
        (cut,) = llm.embed(TEXTS[0], dimensions=4, progress=False)
    mean = states(model, TEXTS[0]).mean(0)
    np.testing.assert_allclose(output.outputs.embedding, mean / np.linalg.norm(mean), atol=1e-4)
    np.testing.assert_allclose(
        cut.outputs.embedding, mean[:4] / np.linalg.norm(mean[:4]), atol=1e-4
    )


@pytest.mark.parametrize(("default", "before"), [("query", "a dog "), (None, "")])
def test_the_default_prompt_of_sentence_transformers_is_in_front(
    tmp_path: Path, default: str | None, before: str
) -> None:
    model = saved_encoder(tmp_path, "XLMRobertaModel")
    with_pooling(tmp_path, "mean_tokens")
    with_prompts(tmp_path, default, query="a dog ", document="")
    with LLM(str(tmp_path)) as llm:
        (output,) = llm.embed(TEXTS[0], progress=False)
        (given,) = llm.embed({"prompt_token_ids": tokenizer().encode("dog").ids}, progress=False)
    mean = states(model, before + TEXTS[0]).mean(0)
    np.testing.assert_allclose(output.outputs.embedding, mean / np.linalg.norm(mean), atol=1e-4)
    assert len(given.prompt_token_ids) == 3


def test_a_prompt_that_cannot_be_followed_is_named(tmp_path: Path) -> None:
    saved_encoder(tmp_path, "BertModel")
    with_pooling(tmp_path, "mean_tokens")
    file = tmp_path / "1_Pooling" / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "include_prompt": False}))
    with LLM(str(tmp_path)) as llm, pytest.raises(RequestError, match="prompt out of the pooling"):
        llm.embed(LONG, progress=False)
    with_prompts(tmp_path, "query", document="")
    with pytest.raises(ConfigError, match="no prompt 'query'"):
        LLM(str(tmp_path))


def test_embeddings_go_through_the_products_behind_the_pooling(tmp_path: Path) -> None:
    """EmbeddingGemma has two of them."""
    model = saved_encoder(tmp_path, "Gemma3TextModel")
    with_pooling(tmp_path, "mean_tokens")
    first, second = with_dense(tmp_path, 16, 40, 12, activation="Tanh")
    with LLM(str(tmp_path)) as llm:
        (output,) = llm.embed(LONG, progress=False)
    due = torch.from_numpy(states(model, LONG).mean(0))
    due = (second @ (first @ due).tanh()).tanh()
    np.testing.assert_allclose(output.outputs.embedding, due / due.norm(), atol=1e-4)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"activation_function": "x.Softsign"}, "has the activation Softsign"),
        ({"use_residual": True}, "does not read and write the embedding alone"),
        ({"bias": True}, "no tensor linear.bias"),
    ],
)
def test_a_product_that_cannot_be_followed_is_named(
    tmp_path: Path, changes: dict[str, Any], problem: str
) -> None:
    saved_encoder(tmp_path, "BertModel")
    with_pooling(tmp_path, "mean_tokens")
    with_dense(tmp_path, 16, 4)
    file = tmp_path / "2_Dense" / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
    with LLM(str(tmp_path)) as llm, pytest.raises(RequestError, match=problem):
        llm.embed(LONG, progress=False)


def test_a_modern_classifier_may_read_all_positions(tmp_path: Path) -> None:
    name = "ModernBertForSequenceClassification"
    model = saved_encoder(tmp_path, name, num_labels=1, classifier_pooling="mean")
    encoded = tokenizer().encode(TEXTS[0], LONG)
    with torch.inference_mode():
        due = model(torch.tensor([encoded.ids])).logits[0].sigmoid()
    with LLM(str(tmp_path)) as llm:
        (output,) = llm.score(TEXTS[0], LONG, progress=False)
    assert output.outputs.score == pytest.approx(float(due), abs=1e-5)


def test_tensors_without_the_prefix_of_their_architecture_are_found(tmp_path: Path) -> None:
    """sentence-transformers saves the base of a model and keeps the name of the whole."""
    model = saved_encoder(tmp_path, "DistilBertModel")
    config = json.loads((tmp_path / "config.json").read_text())
    config["architectures"] = ["DistilBertForMaskedLM"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with LLM(str(tmp_path), pooling="mean") as llm:
        (output,) = llm.embed(LONG, normalize=False, progress=False)
    np.testing.assert_allclose(output.outputs.embedding, states(model, LONG).mean(0), atol=1e-4)


def test_an_encoder_generates_nothing_and_reads_no_more_than_it_can(tmp_path: Path) -> None:
    saved_encoder(tmp_path, "BertModel")
    with LLM(str(tmp_path)) as llm:
        (text,) = llm.generate("the cat", progress=False)
        assert "only makes embeddings" in text.error
        (fits, too_long) = llm.embed(["a " * 39, "a " * 40], progress=False)
        assert fits.usage.prompt_tokens == 41
        assert "maximum context length" in too_long.error
    with pytest.raises(ConfigError, match="reads a text as a whole"):
        LLM(str(tmp_path), enable_prefix_caching=True)
    with pytest.raises(ConfigError, match="41 positions"):
        LLM(str(tmp_path), max_model_len=42)


def test_few_slots_leave_fewer_for_others(tmp_path: Path) -> None:
    saved_encoder(tmp_path, "BertModel")
    config = encoder_config(tmp_path)
    assert config is not None
    assert completed({}, config)["slots_for_others"] == 8
    assert completed({"max_num_seqs": 4}, config)["slots_for_others"] < 4
    assert completed({"slots_for_others": 2}, config)["slots_for_others"] == 2


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    saved_encoder(tmp_path, "BertModel")
    raw = (tmp_path / "config.json").read_text()
    (tmp_path / "config.json").write_text(
        raw.replace('"num_hidden_layers": 2', '"num_hidden_layers": 3')
    )
    with pytest.raises(ConfigError, match=r"missing: encoder\.layer\.2"):
        LLM(str(tmp_path))
