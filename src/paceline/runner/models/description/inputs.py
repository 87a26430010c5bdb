"""Describes what each layer reads of the tokens, beside the residual stream."""

from dataclasses import replace

from paceline.runner.models.architecture import InputSizes, PerLayerInputs, PerLayerSpec
from paceline.runner.models.config import ModelConfig
from paceline.runner.models.description.tensors import (
    LayerTensors,
    decoder_linear,
    decoder_norm,
    tensor_names,
)
from paceline.runner.models.tensor_spec import GGUFForm, TensorSpec


def describe_inputs(config: ModelConfig, sizes: InputSizes) -> PerLayerInputs:
    """transformers divides the linear by the square root of its inputs. The norm after it computes
    the same without, with another eps."""
    width, total = sizes.width, config.layers * sizes.width
    name, *aliases = tensor_names(config, "embed_tokens_per_layer.weight")
    table = GGUFForm("per_layer_token_embd.weight")
    norm = decoder_norm(config, "per_layer_projection_norm", "per_layer_proj_norm", width)
    return PerLayerInputs(
        embedding=TensorSpec(name, (sizes.vocab, total), table, aliases=tuple(aliases)),
        scale=width**0.5,
        linear=decoder_linear(
            config, "per_layer_model_projection", "per_layer_model_proj", (total, config.width)
        ),
        norm=replace(norm, eps=norm.eps * config.width),
        image_token=sizes.image_token,
    )


def describe_input(config: ModelConfig, width: int, tensors: LayerTensors) -> PerLayerSpec:
    return PerLayerSpec(
        gate=tensors.linear("per_layer_input_gate", "inp_gate", (width, config.width)),
        output=tensors.linear("per_layer_projection", "proj", (config.width, width)),
        norm=tensors.norm("post_per_layer_input_norm", "post_norm", config.width),
        activation=config.traits.activation,
        scale=None
        if config.altup is None
        else tensors.tensor(
            "altup.correct_output_scale", "altup_correct_scale.weight", config.width
        ),
    )
