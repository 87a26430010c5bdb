"""Small encoders with random weights, as transformers saves them."""

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

WORDS = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "a", "cat", "sat", "on", "the", "mat", "dog", "##s"]
SIZES: dict[str, Any] = {
    "vocab_size": len(WORDS),
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 41,
    "pad_token_id": 0,
}


def saved_encoder(folder: Path, architecture: str, **more: Any) -> Any:
    """Save a model of transformers and a tokenizer; returns the model."""
    kind = getattr(transformers, architecture)
    torch.manual_seed(0)
    model = kind(kind.config_class(**SIZES, **more)).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(folder)
    tokenizer().save(str(folder / "tokenizer.json"))
    return model


def tokenizer() -> Tokenizer:
    """Words and special tokens as BERT has them."""
    backend = Tokenizer(
        models.WordPiece(vocab={word: id for id, word in enumerate(WORDS)}, unk_token="[UNK]")
    )
    backend.normalizer = normalizers.Lowercase()
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.add_special_tokens(WORDS[:3])
    backend.decoder = decoders.WordPiece()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 1), ("[SEP]", 2)],
    )
    return backend


def with_pooling(folder: Path, mode: str, normalized: bool = True) -> None:
    """Write the files of sentence-transformers."""
    names = ["Transformer", "Pooling", *(["Normalize"] if normalized else [])]
    modules = [
        {"idx": place, "name": str(place), "path": f"{place}_{name}", "type": f"x.models.{name}"}
        for place, name in enumerate(names)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({f"pooling_mode_{mode}": True}))
