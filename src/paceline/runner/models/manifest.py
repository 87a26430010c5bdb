"""The tensors a model consists of: their names, which are HF's, and their shapes."""

from paceline.runner.models.config import ModelConfig

Shape = tuple[int, ...]


def manifest(config: ModelConfig) -> dict[str, Shape]:
    """Every tensor of a model, in the order of its computation."""
    table = (config.vocab, config.width)
    tensors: dict[str, Shape] = {"model.embed_tokens.weight": table}
    for layer in range(config.layers):
        for name, shape in _block(config).items():
            tensors[f"model.layers.{layer}.{name}"] = shape
    tensors["model.norm.weight"] = (config.width,)
    if not config.tied_embedding:
        tensors["lm_head.weight"] = table
    return tensors


def _block(config: ModelConfig) -> dict[str, Shape]:
    traits, width = config.traits, config.width
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    tensors: dict[str, Shape] = {"input_layernorm.weight": (width,)}
    for name, outputs in (("q", queries), ("k", keys), ("v", keys)):
        tensors[f"self_attn.{name}_proj.weight"] = (outputs, width)
        if traits.qkv_bias:
            tensors[f"self_attn.{name}_proj.bias"] = (outputs,)
    if traits.qk_norm:
        tensors["self_attn.q_norm.weight"] = (config.head_dim,)
        tensors["self_attn.k_norm.weight"] = (config.head_dim,)
    tensors["self_attn.o_proj.weight"] = (width, queries)
    tensors["post_attention_layernorm.weight"] = (width,)
    if traits.post_norms:
        tensors["pre_feedforward_layernorm.weight"] = (width,)
        tensors["post_feedforward_layernorm.weight"] = (width,)
    tensors["mlp.gate_proj.weight"] = (config.mlp_width, width)
    tensors["mlp.up_proj.weight"] = (config.mlp_width, width)
    tensors["mlp.down_proj.weight"] = (width, config.mlp_width)
    return tensors
