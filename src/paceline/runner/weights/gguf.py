"""A .gguf file as a checkpoint: its names and layouts turned into HF's."""

import re
from pathlib import Path

from torch import Tensor

from paceline.core.errors import ConfigError
from paceline.runner.models.config import ModelConfig
from paceline.runner.models.manifest import Shape
from paceline.runner.models.traits import Traits
from paceline.runner.weights.gguf_file import read_gguf
from paceline.runner.weights.quants import dequantised

ROPE_FACTORS = "rope_freqs.weight"
OUTER = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
INNER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
WITH_POST_NORMS = INNER | {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}


class GGUF:
    """A checkpoint in llama.cpp's form. The file stays mapped while it lives."""

    def __init__(self, path: Path) -> None:
        file = read_gguf(path)
        tensors = dict(file.tensors)
        factors = tensors.pop(ROPE_FACTORS, None)
        self.config = ModelConfig.of_gguf(
            file.fields,
            tied_embedding="output.weight" not in tensors,
            rope_factors=tuple(dequantised(factors).tolist()) if factors else (),
        )
        traits = self.config.traits
        self._tensors = {_hf_name(name, traits): tensor for name, tensor in tensors.items()}

    @property
    def shapes(self) -> dict[str, Shape]:
        return {name: tensor.shape for name, tensor in self._tensors.items()}

    def read(self, name: str) -> Tensor:
        tensor, config = dequantised(self._tensors[name]), self.config
        if name.endswith("norm.weight"):
            return tensor - config.traits.norm_offset  # the file has what a norm multiplies by
        if config.traits.paired_in_gguf and ".q_proj." in name:
            return _unpaired(tensor, config.heads)
        if config.traits.paired_in_gguf and ".k_proj." in name:
            return _unpaired(tensor, config.kv_heads)
        return tensor


def _hf_name(name: str, traits: Traits) -> str:
    stem, _, kind = name.rpartition(".")
    inner = WITH_POST_NORMS if traits.post_norms else INNER
    if stem in OUTER:
        return f"{OUTER[stem]}.{kind}"
    block = re.fullmatch(r"blk\.(\d+)\.(\w+)", stem)
    if block is None or block[2] not in inner:
        raise ConfigError(f"the GGUF file has an unknown tensor {name!r}")
    return f"model.layers.{block[1]}.{inner[block[2]]}.{kind}"


def _unpaired(tensor: Tensor, heads: int) -> Tensor:
    """Rows of each head from x0 y0 x1 y1 … to x0 x1 … y0 y1 …, pair i being (xi, yi)."""
    paired = tensor.view(heads, -1, 2, *tensor.shape[1:])  # [heads, head_dim / 2, 2, …]
    return paired.transpose(1, 2).reshape(tensor.shape)
