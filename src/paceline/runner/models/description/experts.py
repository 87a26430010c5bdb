"""Describes MoE layers: routers, experts and the shared expert."""

from dataclasses import replace

from paceline.runner.models.config import ModelConfig
from paceline.runner.models.description.tensors import LayerTensors, joined
from paceline.runner.models.experts import (
    ExpertSizes,
    ExpertSpec,
    ExpertStack,
    ExpertTraits,
    MoESpec,
    SharedExpertSpec,
)
from paceline.runner.models.linear_spec import LinearSpec
from paceline.runner.models.tensor_spec import StackedForm

GATE, SHARED_GATE = "ffn_gate_inp", "ffn_gate_inp_shexp"  # in GGUF files


def describe_moe(
    config: ModelConfig, sizes: ExpertSizes, traits: ExpertTraits, tensors: LayerTensors
) -> MoESpec:
    """A GGUF file has one tensor for all experts; HF's files have one for each, or for all."""
    width, inner, stack = config.width, sizes.width, traits.stack

    def linear(expert: int, name: str, gguf: str, shape: tuple[int, int]) -> LinearSpec:
        stem = f"{traits.block}.experts.{expert}.{name}"
        return tensors.linear(stem, f"ffn_{gguf}_exps", shape, traits.has_biases, part=expert)

    def one(expert: int) -> ExpertSpec:
        gate = linear(expert, traits.gate, "gate", (inner, width))
        up = linear(expert, traits.up, "up", (inner, width))
        down = linear(expert, traits.down, "down", (width, inner))
        if stack is not None:
            stem = tensors.stem(traits.block)
            forms = stacked_forms(stack, stem, expert, inner)
            gate, up, down = map(_stacked, (gate, up, down), forms)
        return ExpertSpec(joined([gate, up]), down)

    correction = None
    if traits.correction:
        name = f"{traits.block}.{traits.correction}"
        correction = tensors.tensor(name, "exp_probs_b.bias", sizes.count)
    return MoESpec(
        norm=tensors.residual_norm(config.traits.norms.mlp, config.traits.norms.mlp_in_gguf),
        router=_plain(
            tensors.linear(
                f"{traits.block}.{traits.router}", GATE, (sizes.count, width), traits.has_biases
            )
        ),
        routing=sizes.routing,
        experts=tuple(one(expert) for expert in range(sizes.count)),
        activation=config.traits.activation,
        clamp=sizes.clamp,
        correction=correction,
        shared=_shared(config, sizes, traits, tensors) if sizes.shared_width else None,
    )


def _shared(
    config: ModelConfig, sizes: ExpertSizes, traits: ExpertTraits, tensors: LayerTensors
) -> SharedExpertSpec:
    width, inner, stem = config.width, sizes.shared_width, f"{traits.block}.{traits.shared}"
    gate, has_bias = None, config.mlp_bias
    if traits.shared_gate:
        name = f"{traits.block}.{traits.shared_gate}"
        gate = _plain(tensors.linear(name, SHARED_GATE, (1, width)))
    parts = {"gate": inner, "up": inner}
    if traits.shared_is_fused:
        parts = {"gate_up": 2 * inner}
    return SharedExpertSpec(
        gate_up=joined(
            tensors.linear(f"{stem}.{name}_proj", f"ffn_{name}_shexp", (size, width), has_bias)
            for name, size in parts.items()
        ),
        down=tensors.linear(f"{stem}.down_proj", "ffn_down_shexp", (width, inner), has_bias),
        gate=gate,
    )


def _plain(linear: LinearSpec) -> LinearSpec:
    """Routers and gates are never quantized."""
    return replace(linear, quantized=())


def stacked_forms(
    stack: ExpertStack, stem: str, expert: int, inner: int
) -> tuple[StackedForm, StackedForm, StackedForm]:
    """Where gate, up and down of an expert are."""
    both, down = f"{stem}.{stack.gate_up}", f"{stem}.{stack.down}"
    if stack.alternates:
        gate = StackedForm(both, expert, 0, 2, outputs=stack.outputs)
        up = replace(gate, first=1)
    else:
        gate = StackedForm(both, expert, end=inner, outputs=stack.outputs)
        up = replace(gate, first=inner, end=None)
    return gate, up, StackedForm(down, expert, outputs=stack.outputs)


def _stacked(linear: LinearSpec, form: StackedForm) -> LinearSpec:
    """A linear whose tensors are in one of all experts; that of the biases has a name like it."""
    of_biases = replace(form, name=f"{form.name}_bias")
    return replace(
        linear,
        weights=tuple(replace(one, stack=form) for one in linear.weights),
        biases=tuple(replace(one, stack=of_biases) for one in linear.biases),
    )
