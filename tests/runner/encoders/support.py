"""Small encoders with random weights, as transformers saves them."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file
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
# What is called otherwise, or small enough to matter for short texts.
OWN_SIZES: dict[str, dict[str, Any]] = {
    "DistilBert": {"hidden_dim": 24, "n_layers": 2},
    "ModernBert": {
        "num_hidden_layers": 4,
        "local_attention": 4,
        "cls_token_id": 1,
        "bos_token_id": 1,
        "sep_token_id": 2,
        "eos_token_id": 2,
    },
    "MPNet": {"pad_token_id": 1},
    "XLMRoberta": {"pad_token_id": 1, "type_vocab_size": 1, "max_position_embeddings": 42},
    "Gemma3": {
        "num_hidden_layers": 3,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "sliding_window": 4,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "query_pre_attn_scalar": 5,
        "use_bidirectional_attention": True,
    },
}


def saved_encoder(folder: Path, architecture: str, **more: Any) -> Any:
    """Save a model of transformers and a tokenizer; returns the model."""
    kind = getattr(transformers, architecture)
    torch.manual_seed(0)
    own = next((one for name, one in OWN_SIZES.items() if name in architecture), {})
    model = kind(kind.config_class(**{**SIZES, **own, **more})).eval()
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
    with_modules(folder, "Transformer", "Pooling", *(["Normalize"] if normalized else []))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({f"pooling_mode_{mode}": True}))


def with_prompts(folder: Path, default: str | None, **prompts: str) -> None:
    """Write the prompts of sentence-transformers."""
    content = {"prompts": prompts, "default_prompt_name": default}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(content))


def with_modules(folder: Path, *names: str) -> None:
    modules = [
        {"idx": place, "name": str(place), "path": f"{place}_{name}", "type": f"x.models.{name}"}
        for place, name in enumerate(names)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))


def with_dense(folder: Path, *sizes: int, activation: str = "Identity") -> list[torch.Tensor]:
    """Add products behind the pooling, with numbers in bfloat16; returns them."""
    names = ["Transformer", "Pooling", *["Dense"] * (len(sizes) - 1), "Normalize"]
    with_modules(folder, *names)
    made: list[torch.Tensor] = []
    for place, (width, outputs) in enumerate(pairwise(sizes), start=2):
        weight = torch.randn(outputs, width, generator=torch.Generator().manual_seed(place))
        own = folder / f"{place}_Dense"
        own.mkdir()
        kept = weight.to(torch.bfloat16)
        save_file({"linear.weight": kept}, own / "model.safetensors")
        kind = f"torch.nn.modules.activation.{activation}"
        settings = {"in_features": width, "out_features": outputs, "bias": False}
        (own / "config.json").write_text(json.dumps({**settings, "activation_function": kind}))
        made.append(kept.float())
    return made
