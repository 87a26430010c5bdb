"""EAGLE-3 heads with random weights, as files, and what one computes, in plain torch."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from paceline.runner.models.config import ModelConfig

EPS = 1e-5


def head_config(model: ModelConfig, **changes: Any) -> dict[str, Any]:
    """The config.json of a head for a model."""
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "hidden_size": model.width,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "intermediate_size": 36,
        "vocab_size": model.vocab,
        "draft_vocab_size": max(2 * model.vocab // 3, 1),
        "max_position_embeddings": 64,
        "rms_norm_eps": EPS,
        "rope_theta": 5000.0,
        **changes,
    }


def head_tensors(config: dict[str, Any], model: ModelConfig, seed: int = 0) -> dict[str, Tensor]:
    """Random tensors of a head, under the names that are published."""
    random = torch.Generator().manual_seed(seed)
    width, inner, drafts = (
        config[name] for name in ("hidden_size", "intermediate_size", "draft_vocab_size")
    )
    queries, keys = 8 * config["num_attention_heads"], 8 * config["num_key_value_heads"]
    matrices = {
        "fc": (width, 3 * config.get("target_hidden_size", model.width)),
        "midlayer.self_attn.q_proj": (queries, 2 * width),
        "midlayer.self_attn.k_proj": (keys, 2 * width),
        "midlayer.self_attn.v_proj": (keys, 2 * width),
        "midlayer.self_attn.o_proj": (width, queries),
        "midlayer.mlp.gate_proj": (inner, width),
        "midlayer.mlp.up_proj": (inner, width),
        "midlayer.mlp.down_proj": (width, inner),
        "lm_head": (drafts, width),
    }
    norms = ("input_layernorm", "hidden_norm", "post_attention_layernorm")
    found = {
        f"{name}.weight": torch.randn(shape, generator=random) * shape[1] ** -0.5
        for name, shape in matrices.items()
    }
    for name in (*(f"midlayer.{norm}" for norm in norms), "norm"):
        found[f"{name}.weight"] = 1.0 + 0.1 * torch.randn(width, generator=random)
    chosen = torch.randperm(model.vocab, generator=random)[:drafts].sort().values
    found["d2t"] = chosen - torch.arange(drafts)
    found["t2d"] = torch.zeros(model.vocab, dtype=torch.bool).index_fill(0, chosen, True)
    return found


def head_folder(folder: Path, model: ModelConfig, **changes: Any) -> Path:
    """A head for a model, in files."""
    config = head_config(model, **changes)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(head_tensors(config, model), folder / "model.safetensors")
    return folder


class PlainHead:
    """A head over one whole sequence, without a cache."""

    def __init__(self, tensors: dict[str, Tensor], config: dict[str, Any]) -> None:
        self._tensors, self._config = tensors, config

    def _weight(self, name: str) -> Tensor:
        return self._tensors[f"{name}.weight"]

    def _normed(self, x: Tensor, name: str) -> Tensor:
        return x * (x.pow(2).mean(-1, keepdim=True) + EPS).rsqrt() * self._weight(name)

    def _heads(self, x: Tensor, name: str, rotated: bool) -> Tensor:
        """[heads, positions, 8]"""
        heads = (x @ self._weight(f"midlayer.self_attn.{name}").T).view(len(x), -1, 8)
        if rotated:
            rates = self._config["rope_theta"] ** (-torch.arange(0, 8, 2) / 8)
            angle = (torch.arange(len(x))[:, None] * rates)[:, None]
            a, b = heads[..., :4], heads[..., 4:]
            heads = torch.cat(
                (a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()), -1
            )
        return heads.transpose(0, 1)

    def fused(self, states: Tensor) -> Tensor:
        return states @ self._weight("fc").T

    def hidden(self, embedded: Tensor, states: Tensor) -> Tensor:
        """The hidden state after each position, from fused states."""
        second = self._normed(states, "midlayer.hidden_norm")
        x = torch.cat((self._normed(embedded, "midlayer.input_layernorm"), second), -1)
        query, key = self._heads(x, "q_proj", True), self._heads(x, "k_proj", True)
        value = self._heads(x, "v_proj", False)
        share = len(query) // len(key)
        scores = query @ key.repeat_interleave(share, 0).transpose(1, 2) / 8**0.5
        ahead = torch.ones(len(x), len(x)).triu(1).bool()
        seen = scores.masked_fill(ahead, -torch.inf).softmax(-1) @ value.repeat_interleave(share, 0)
        total = second if self._config.get("norm_before_residual") else states
        total = (
            total + seen.transpose(0, 1).flatten(1) @ self._weight("midlayer.self_attn.o_proj").T
        )
        inner = self._normed(total, "midlayer.post_attention_layernorm")
        gate = torch.nn.functional.silu(inner @ self._weight("midlayer.mlp.gate_proj").T)
        up = inner @ self._weight("midlayer.mlp.up_proj").T
        return total + (gate * up) @ self._weight("midlayer.mlp.down_proj").T

    def logits(self, hidden: Tensor) -> Tensor:
        return self._normed(hidden, "norm") @ self._weight("lm_head").T

    def drafts(self, embedding: Tensor, tokens: Tensor, states: Tensor, most: int) -> list[int]:
        """Ids that follow all tokens, where the model computed all but the last of them."""
        ids = torch.arange(len(self._tensors["d2t"])) + self._tensors["d2t"]
        states, found = self.fused(states), list[int]()
        for _ in range(most):
            hidden = self.hidden(embedding[tokens[1:]], states)[-1:]
            found.append(int(ids[self.logits(hidden)[0].argmax()]))
            tokens = torch.cat((tokens, torch.tensor(found[-1:])))
            states = torch.cat((states, hidden))
        return found
