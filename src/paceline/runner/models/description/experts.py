"""Describes MoE layers: routers, experts and the shared expert."""

from collections.abc import Sequence
from dataclasses import replace

from paceline.runner.models.config import ModelConfig
from paceline.runner.models.description.tensors import LayerTensors, joined
from paceline.runner.models.experts import (
    ExpertLatentSpec,
    ExpertSizes,
    ExpertSpec,
    ExpertStack,
    ExpertTraits,
    MoESpec,
    SharedExpertSpec,
)
from paceline.runner.models.linear_spec import LinearSpec
from paceline.runner.models.tensor_spec import GGUFForm, Run, StackedForm, TensorSpec

GATE, SHARED_GATE = "ffn_gate_inp", "ffn_gate_inp_shexp"  # in GGUF files


def describe_moe(
    config: ModelConfig, sizes: ExpertSizes, traits: ExpertTraits, tensors: LayerTensors
) -> MoESpec:
    """A GGUF file has one tensor for all experts; HF's files have one for each, or for all."""
    width, inner, stack = sizes.latent or config.width, sizes.width, traits.stack
    gated = config.traits.gated_mlp

    def linear(expert: int, name: str, gguf: str, shape: tuple[int, int]) -> LinearSpec:
        stem = traits.name(f"experts.{expert}.{name}")
        return tensors.linear(stem, f"ffn_{gguf}_exps", shape, traits.has_biases, part=expert)

    def one(expert: int) -> ExpertSpec:
        up = linear(expert, traits.up, "up", (inner, width))
        down = linear(expert, traits.down, "down", (width, inner))
        if not gated:
            return ExpertSpec(up, down)
        gate = linear(expert, traits.gate, "gate", (inner, width))
        if stack is not None:
            names = [tensors.stem(traits.name(one)) for one in (stack.gate_up, stack.down)]
            forms = stacked_forms(stack, names, expert, inner)
            gate, up, down = map(_stacked, (gate, up, down), forms)
            gate, up = (
                _or_rows_of(linear, f"blk.{tensors.layer}.ffn_gate_up_exps.weight", rows)
                for linear, rows in ((gate, (0, inner)), (up, (inner, 2 * inner)))
            )
        return ExpertSpec(joined([gate, up]), down)

    correction = None
    if traits.correction:
        name = traits.name(traits.correction)
        shape = (1,) * (traits.correction_rank - 1)
        correction = tensors.tensor(name, "exp_probs_b.bias", *shape, sizes.count)
    norms = config.traits.norms
    found = MoESpec(
        norm=tensors.residual_norm(norms.mlp, norms.mlp_in_gguf),
        router=_plain(
            tensors.linear(
                traits.name(traits.router), GATE, (sizes.count, config.width), traits.has_biases
            )
        ),
        routing=sizes.routing,
        experts=tuple(one(expert) for expert in range(sizes.count)),
        activation=config.traits.activation,
        clamp=sizes.clamp,
        correction=correction,
        shared=_shared(config, sizes, traits, tensors) if sizes.shared_width else None,
        gated_experts=gated,
        latent=_latent(config, sizes.latent, traits, tensors) if sizes.latent else None,
    )
    return _beside_mlp(found, config, tensors) if traits.beside_mlp else found


def _beside_mlp(spec: MoESpec, config: ModelConfig, tensors: LayerTensors) -> MoESpec:
    """Experts beside an MLP, which has the norms of a layer without experts."""
    assert spec.shared is not None
    behind = tensors.output_norm(f"{config.traits.norms.mlp_output}_1", "post_ffw_norm_1")
    return replace(
        spec,
        norm=tensors.residual_norm(f"{config.traits.norms.mlp}_2", "pre_ffw_norm_2"),
        shared=replace(spec.shared, norm=spec.norm, output_norm=behind),
        router_scale=tensors.tensor("router.scale", "ffn_gate_inp.scale", config.width),
        expert_scales=tensors.tensor(
            "router.per_expert_scale", "ffn_down_exps.scale", len(spec.experts)
        ),
        experts_norm=tensors.output_norm(f"{config.traits.norms.mlp_output}_2", "post_ffw_norm_2"),
        output_norm=tensors.output_norm(config.traits.norms.mlp_output, "post_ffw_norm"),
    )


def _shared(
    config: ModelConfig, sizes: ExpertSizes, traits: ExpertTraits, tensors: LayerTensors
) -> SharedExpertSpec:
    width, inner, stem = config.width, sizes.shared_width, traits.name(traits.shared)
    gate, has_bias = None, config.mlp_bias
    if traits.shared_gate:
        name = traits.name(traits.shared_gate)
        gate = _plain(tensors.linear(name, SHARED_GATE, (1, width)))
    parts = {"gate": inner, "up": inner} if config.traits.gated_mlp else {"up": inner}
    ending = "" if traits.beside_mlp else "_shexp"  # in GGUF files
    if traits.shared_is_fused:
        parts = {"gate_up": 2 * inner}
    return SharedExpertSpec(
        gate_up=joined(
            tensors.linear(f"{stem}.{name}_proj", f"ffn_{name}{ending}", (size, width), has_bias)
            for name, size in parts.items()
        ),
        down=tensors.linear(f"{stem}.down_proj", f"ffn_down{ending}", (width, inner), has_bias),
        gate=gate,
    )


def _latent(
    config: ModelConfig, latent: int, traits: ExpertTraits, tensors: LayerTensors
) -> ExpertLatentSpec:
    before, after = (traits.name(f"fc{number}_latent_proj") for number in (1, 2))
    width, has_bias = config.width, config.mlp_bias
    return ExpertLatentSpec(
        tensors.linear(before, "ffn_latent_down", (latent, width), has_bias),
        tensors.linear(after, "ffn_latent_up", (width, latent), has_bias),
    )


def _plain(linear: LinearSpec) -> LinearSpec:
    """Routers and gates are never quantized."""
    return replace(linear, quantized=())


def stacked_forms(
    stack: ExpertStack, names: Sequence[str], expert: int, inner: int
) -> tuple[StackedForm, StackedForm, StackedForm]:
    """Where gate, up and down of an expert are."""
    both, down = names
    if stack.alternates:
        gate = StackedForm(both, expert, 0, 2, outputs=stack.outputs)
        up = replace(gate, first=1)
    else:
        gate = StackedForm(both, expert, end=inner, outputs=stack.outputs)
        up = replace(gate, first=inner, end=None)
    return gate, up, StackedForm(down, expert, outputs=stack.outputs)


def _or_rows_of(linear: LinearSpec, name: str, rows: Run) -> LinearSpec:
    """A linear whose weights may be rows of another tensor in a GGUF file."""

    def one(weight: TensorSpec) -> TensorSpec:
        other = GGUFForm(name, part=weight.gguf.part, rows=(rows,))
        return replace(weight, gguf=replace(weight.gguf, instead=other))

    return replace(linear, weights=tuple(map(one, linear.weights)))


def _stacked(linear: LinearSpec, form: StackedForm) -> LinearSpec:
    """A linear whose tensors are in one of all experts; that of the biases has a name like it."""
    of_biases = replace(form, name=f"{form.name}_bias")
    return replace(
        linear,
        weights=tuple(replace(one, stack=form) for one in linear.weights),
        biases=tuple(replace(one, stack=of_biases) for one in linear.biases),
    )
