"""Describes MoE layers: routers and experts."""

from dataclasses import replace

from paceline.runner.models.architecture import ExpertSizes, ExpertSpec, LinearSpec, MoESpec
from paceline.runner.models.config import ModelConfig
from paceline.runner.models.description.tensors import LayerTensors, joined
from paceline.runner.models.tensor_spec import StackedForm
from paceline.runner.models.traits import ExpertNames


def describe_moe(
    config: ModelConfig, sizes: ExpertSizes, names: ExpertNames, tensors: LayerTensors
) -> MoESpec:
    """A GGUF file has one tensor for all experts; HF's files have one for each, or for all."""
    width, inner = config.width, sizes.width

    def linear(expert: int, name: str, gguf: str, shape: tuple[int, int]) -> LinearSpec:
        stem = f"{names.block}.experts.{expert}.{name}"
        has_bias = names.has_biases
        return tensors.linear(stem, f"ffn_{gguf}_exps", shape, has_bias, part=expert)

    def one(expert: int) -> ExpertSpec:
        gate = linear(expert, names.gate, "gate", (inner, width))
        up = linear(expert, names.up, "up", (inner, width))
        down = linear(expert, names.down, "down", (width, inner))
        if names.is_stacked:
            stem = tensors.stem(f"{names.block}.experts")
            gate = _stacked(gate, StackedForm(f"{stem}.gate_up_proj", expert, 0, 2))
            up = _stacked(up, StackedForm(f"{stem}.gate_up_proj", expert, 1, 2))
            down = _stacked(down, StackedForm(f"{stem}.down_proj", expert))
        return ExpertSpec(joined([gate, up]), down)

    router = f"{names.block}.{names.router}"
    return MoESpec(
        norm=tensors.norm("post_attention_layernorm", "ffn_norm", width),
        router=replace(
            tensors.linear(router, "ffn_gate_inp", (sizes.count, width), names.has_biases),
            quantized=(),
        ),
        experts=tuple(one(expert) for expert in range(sizes.count)),
        chosen=sizes.chosen,
        shares_sum_to_one=sizes.shares_sum_to_one,
        activation=config.traits.activation,
        clamp=sizes.clamp,
    )


def _stacked(linear: LinearSpec, form: StackedForm) -> LinearSpec:
    """A linear whose tensors are in one of all experts; that of the biases has a name like it."""
    of_biases = replace(form, name=f"{form.name}_bias")
    return replace(
        linear,
        weights=tuple(replace(one, stack=form) for one in linear.weights),
        biases=tuple(replace(one, stack=of_biases) for one in linear.biases),
    )
