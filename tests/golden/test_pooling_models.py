"""Decoders that embed, score or classify texts, and the text part of a model with images, as
transformers writes them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from paceline import LLM, ConfigError, SamplingParams
from paceline.text.pooling_files import RERANKING
from tests.runner.encoders.support import WORDS, tokenizer, with_modules, with_pooling

TEXTS = ["the cat sat on the mat", "dog", "a dog sat on the mat the cat sat"]
SIZES: dict[str, Any] = {
    "vocab_size": len(WORDS) + 2,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "intermediate_size": 24,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": 2,
}
NO, YES = len(WORDS), len(WORDS) + 1


def saved(folder: Path, architecture: str, **more: Any) -> Any:
    kind = getattr(transformers, architecture)
    torch.manual_seed(0)
    model = kind(kind.config_class(**{**SIZES, **more})).eval()
    return written(folder, model)


def written(folder: Path, model: Any) -> Any:
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder)
    words = tokenizer()
    words.add_tokens(["no", "yes"])
    words.save(str(folder / "tokenizer.json"))
    return model


def changed(folder: Path, **entries: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **entries}))


def ids_of(text: str, other: str | None = None) -> torch.Tensor:
    encoded = tokenizer().encode(text) if other is None else tokenizer().encode(text, other)
    return torch.tensor([encoded.ids])


def check_embeddings(folder: Path, model: Any) -> None:
    with LLM(str(folder), kv_cache_gib=0.01, max_num_batched_tokens=8, max_num_seqs=2) as llm:
        found = llm.embed(TEXTS, progress=False)
        (text,) = llm.generate("the cat", progress=False)
    assert "only makes embeddings or scores" in text.error
    for text, output in zip(TEXTS, found, strict=True):
        with torch.inference_mode():
            due = model(ids_of(text)).last_hidden_state[0, -1]
        np.testing.assert_allclose(output.outputs.embedding, due / due.norm(), atol=1e-4)


@pytest.mark.parametrize("architecture", ["Qwen3Model", "LlamaModel", "Gemma3TextModel"])
def test_a_decoder_without_a_head_embeds(tmp_path: Path, architecture: str) -> None:
    model = saved(tmp_path, architecture)
    check_embeddings(tmp_path, model)


def test_a_model_of_sentence_transformers_may_lack_the_head_that_it_names(tmp_path: Path) -> None:
    """Qwen3-Embedding names Qwen3ForCausalLM, and its tensors begin with nothing."""
    model = saved(tmp_path, "Qwen3Model", tie_word_embeddings=False)
    changed(tmp_path, architectures=["Qwen3ForCausalLM"])
    with_pooling(tmp_path, "lasttoken")
    check_embeddings(tmp_path, model)


@pytest.mark.parametrize("labels", [1, 3])
def test_a_decoder_with_classes_scores_pairs(tmp_path: Path, labels: int) -> None:
    model = saved(tmp_path, "Qwen3ForSequenceClassification", num_labels=labels)
    with LLM(str(tmp_path), kv_cache_gib=0.01, max_num_batched_tokens=8, max_num_seqs=2) as llm:
        found = llm.score(TEXTS[0], TEXTS, progress=False)
    for text, output in zip(TEXTS, found, strict=True):
        with torch.inference_mode():
            logits = model(ids_of(TEXTS[0], text)).logits[0]
        due = logits.sigmoid()[0] if labels == 1 else logits.softmax(-1)[-1]
        assert output.outputs.score == pytest.approx(float(due), abs=1e-5)


def of_config(folder: Path) -> None:
    changed(folder, classifier_from_token=["no", "yes"])


def of_modules(folder: Path) -> None:
    with_modules(folder, "Transformer", "LogitScore")
    (folder / "1_LogitScore").mkdir()
    ids = {"true_token_id": YES, "false_token_id": NO}
    (folder / "1_LogitScore" / "config.json").write_text(json.dumps(ids))


def of_name(folder: Path) -> None:
    """The published rerankers have no other mark."""


@pytest.mark.parametrize("mark", [of_config, of_modules, of_name])
@pytest.mark.parametrize("is_tied", [True, False])
def test_a_reranker_scores_by_its_next_token(tmp_path: Path, mark: Any, is_tied: bool) -> None:
    folder = tmp_path / ("Qwen3-Reranker" if mark is of_name else "other")
    model = saved(folder, "Qwen3ForCausalLM", tie_word_embeddings=is_tied)
    if not is_tied:
        of_half_precision(folder)
        model = transformers.Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    mark(folder)
    pairs = [(TEXTS[0], TEXTS[1]), ("<|im_start|> a cat", "a dog")]  # the client marks the last one
    with LLM(str(folder), kv_cache_gib=0.01, max_num_batched_tokens=64) as llm:
        found = [llm.score(*pair, progress=False)[0] for pair in pairs]
        assert llm.generate("the cat", max_tokens=3, progress=False)[0].outputs[0].token_ids
    begin, middle, end = RERANKING.partition("{{ messages[0].content }}")
    begin = begin.replace(
        begin[begin.index("{{") : begin.index("}}") + 2],
        "Given a web search query, retrieve relevant passages that answer the query",
    )
    words = tokenizer()
    words.add_tokens(["no", "yes"])
    whole = (begin + TEXTS[0] + end).replace("{{ messages[1].content }}", TEXTS[1])
    prompts = words.encode(whole, add_special_tokens=False).ids, words.encode(*pairs[1]).ids
    assert middle
    for ids, output in zip(prompts, found, strict=True):
        with torch.inference_mode():
            logits = model(torch.tensor([ids])).logits[0, -1]
        due = logits[[NO, YES]].softmax(-1)[1]
        assert output.outputs.score == pytest.approx(float(due), abs=1e-5)
        assert output.prompt_token_ids == tuple(ids)


def of_half_precision(folder: Path) -> None:
    """The same tensors in bfloat16, in two files."""
    tensors = {
        name: one.bfloat16() for name, one in load_file(folder / "model.safetensors").items()
    }
    (folder / "model.safetensors").unlink()
    halves = "a.safetensors", "b.safetensors"
    where = {name: halves[place % 2] for place, name in enumerate(sorted(tensors))}
    for half in halves:
        save_file({name: tensors[name] for name in tensors if where[name] == half}, folder / half)
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": where})
    )


def gemma_with_images(folder: Path) -> Any:
    text = {
        **SIZES,
        "sliding_window": 6,
        "num_hidden_layers": 3,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    }
    vision = {
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 28,
        "patch_size": 14,
    }
    kind: Any = transformers.Gemma3ForConditionalGeneration
    torch.manual_seed(0)
    config = kind.config_class(
        text_config=text,
        vision_config=vision,
        mm_tokens_per_image=4,
        image_token_index=5,
        boi_token_index=6,
        eoi_token_index=7,
    )
    return written(folder, kind(config).eval())


def test_gemma_3_generates_without_images(tmp_path: Path) -> None:
    model = gemma_with_images(tmp_path)
    ids = ids_of(TEXTS[2])
    tokens = ids[0].tolist()
    with LLM(str(tmp_path), kv_cache_gib=0.01) as llm:
        params = SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True)
        (found,) = llm.generate([{"prompt_token_ids": tokens}], params, progress=False)
    for _ in range(6):
        with torch.inference_mode():
            tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
    assert found.outputs[0].token_ids == tuple(tokens[ids.shape[1] :])


@pytest.mark.parametrize(
    ("architecture", "message"),
    [
        (
            "ElectraModel",
            "embed or classify texts are BertModel, .*; and Model .*Classification of .* qwen3",
        ),
        ("RobertaForTokenClassification", "is not supported"),
        ("DistilRobertaModel", "the nearest is DistilBertModel"),
        ("PaliGemmaForConditionalGeneration", "models with images are .*qwen2_5_vl"),
        ("Llama9ForCausalLM", "the nearest is llama; supported models that generate text are"),
    ],
)
def test_a_refusal_names_what_is_near(tmp_path: Path, architecture: str, message: str) -> None:
    saved(tmp_path, "LlamaForCausalLM")
    changed(tmp_path, architectures=[architecture])
    with pytest.raises(ConfigError, match=message):
        LLM(str(tmp_path))
