"""Small models with MTP heads, whose judge is transformers: it has no such heads, so it computes
the layer of a head as a decoder of one layer that reads embeddings."""

import json
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from paceline.runner.models.config import ModelConfig
from paceline.runner.models.description.mtp import layer_config, names_of, stem_of
from paceline.runner.models.traits import find
from tests.conformance.architectures import Case
from tests.golden.support import saved

NORMS = ("embedding_norm", "hidden_norm", "norm")
CLASSES = {"mimo": "MiMoForCausalLM"}  # that transformers does not have


@dataclass(frozen=True)
class JudgedModel:
    """A model of transformers, and its head."""

    model: Any
    layer: Any  # a decoder of one layer
    parts: dict[str, Tensor]  # by their names in `MTPNames`
    config: ModelConfig

    def states(self, tokens: Tensor) -> Tensor:
        """Hidden states of the model behind its last norm, [positions, width]."""
        return self.model.model(tokens[None]).last_hidden_state[0]

    def results(self, following: Tensor, states: Tensor) -> Tensor:
        """Results of the head at each position, from the next tokens."""
        embedded = self.model.get_input_embeddings()(following)
        both = self._normed(embedded, "embedding_norm"), self._normed(states, "hidden_norm")
        read = torch.cat(both[::-1] if names_of(self.config).hidden_first else both, dim=1)
        total = read @ self.parts["linear"].T
        return self._normed(self.layer(inputs_embeds=total[None]).last_hidden_state[0], "norm")

    def drafts(self, tokens: Tensor, most: int) -> list[int]:
        """The likeliest tokens behind all of these, of which the model computed all but one."""
        states, found = self.states(tokens[:-1]), list[int]()
        for _ in range(most):
            result = self.results(tokens[1:], states)[-1:]
            found.append(int(self.model.lm_head(result)[0].argmax()))
            tokens = torch.cat((tokens, torch.tensor(found[-1:])))
            states = torch.cat((states, result))
        return found

    def _normed(self, x: Tensor, name: str) -> Tensor:
        factor = self.parts[name] + self.config.traits.norm_offset
        return x * (x.pow(2).mean(-1, keepdim=True) + self.config.norm_eps).rsqrt() * factor


class WithHead(Case):
    """A model whose last layer has attention, and so has one before it."""

    @property
    def own_changes(self) -> dict[str, Any]:
        if find(self.architecture).states is None:
            return super().own_changes
        return {"layer_types": ["linear_attention", "full_attention", "full_attention"]}


def with_head(architecture: str, folder: Path) -> JudgedModel:
    """Save a model, whose last layer becomes the layer of its head."""
    model = saved(WithHead(architecture), folder)
    layers = len(model.model.layers) - 1
    raw = json.loads((folder / "config.json").read_text()) | {
        "architectures": [CLASSES.get(architecture, type(model).__name__)],
        "num_hidden_layers": layers,
        "num_nextn_predict_layers": 1,
        "tie_word_embeddings": False,
    }
    if "layer_types" in raw:
        raw["layer_types"] = raw["layer_types"][:layers]
    config = ModelConfig.of_hf(raw)
    names, stem = names_of(config), stem_of(config)
    tensors = load_file(folder / "model.safetensors")
    before, decoder = f"model.layers.{layers}.", layer_config(config).traits.decoder
    inside = f"{decoder.prefix}.{decoder.layers}."
    moved = [name for name in tensors if name.startswith(before)]
    tensors |= {f"{inside}{name.removeprefix(before)}": tensors.pop(name) for name in moved}
    random = torch.Generator().manual_seed(5)
    width, offset = config.width, find(architecture).norm_offset
    parts = {"linear": torch.randn(width, 2 * width, generator=random) * (2 * width) ** -0.5}
    for name in NORMS:
        parts[name] = 1.0 - offset + 0.3 * torch.randn(width, generator=random)
    tensors |= {f"{stem}.{getattr(names, name)}.weight": one for name, one in parts.items()}
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(raw))
    return JudgedModel(*divided(model, layers), parts, config)


def divided(model: Any, layers: int) -> tuple[Any, Any]:
    """The model without its last layer, and a decoder of that layer without a norm behind it."""
    body = model.model
    last, layer = body.layers[layers], deepcopy(body)
    body.layers = body.layers[:layers]
    layer.layers, layer.norm = nn.ModuleList([last]), nn.Identity()
    for one, count in ((body, layers), (layer, 1)):
        one.config = deepcopy(one.config)
        kinds = getattr(one.config, "layer_types", None)
        one.config.num_hidden_layers = count
        if kinds:
            one.config.layer_types = kinds[:layers] if one is body else kinds[layers:]
    for one in (model, layer):
        one.config.use_cache = False
    if hasattr(last.self_attn, "layer_idx"):
        last.self_attn.layer_idx = 0
    return model, layer
