"""Kimi Delta Attention (KDA), as Kimi-Linear has it."""

from dataclasses import dataclass
from typing import ClassVar

from paceline.runner.models.config_entries import ConfigEntries
from paceline.runner.models.description.tensors import joined
from paceline.runner.models.linear_spec import LinearSpec, NormSpec
from paceline.runner.models.states.state_sizes import NamedTensors, StateTensor, StateUpdate
from paceline.runner.models.tensor_spec import TensorSpec

LAYER = "self_attn"


@dataclass(frozen=True, slots=True)
class KDASpec:
    """x + output(head_norm(read) * sigmoid(gate)), of a state [head_dim, head_dim] for each head.

    It is the gated delta net of `GatedDeltaSpec` with a decay for each dimension of a key instead
    of one for each head. Decays and gates are linears of narrow vectors.

    inputs         queries, keys, values, the vector of decays, rates, and the vector of gates
    decay, gate    linears of the two vectors
    convolutions   [channels, 1, positions] each, of queries, of keys and of values
    log_decay      [1, 1, heads, 1]
    decay_bias     [heads * head_dim]
    head_norm      of what each head reads
    """

    FEATURE: ClassVar[str] = "kda"

    norm: NormSpec
    inputs: LinearSpec
    decay: LinearSpec
    gate: LinearSpec
    heads: int
    head_dim: int
    convolutions: tuple[TensorSpec, ...]
    log_decay: TensorSpec
    decay_bias: TensorSpec
    head_norm: NormSpec
    output: LinearSpec

    @property
    def width(self) -> int:
        """Of queries, of keys and of values."""
        return self.heads * self.head_dim

    @property
    def kept(self) -> tuple[StateTensor, ...]:
        state = (self.heads, self.head_dim, self.head_dim)
        tail = (self.convolutions[0].shape[-1] - 1, 3 * self.width)
        return StateTensor(state, is_recurrent=True), StateTensor(tail, is_recurrent=False)

    @property
    def update(self) -> StateUpdate:
        return StateUpdate(self.width, self.width, self.width)


@dataclass(frozen=True, slots=True)
class KDASizes:
    """See `KDASpec`. The convolutions cover `positions` positions."""

    width: int
    heads: int
    head_dim: int
    positions: int
    eps: float

    def describe(self, tensors: NamedTensors, norm: NormSpec) -> KDASpec:
        inner, dim = self.heads * self.head_dim, self.head_dim
        parts = [(f"{one}_proj", f"attn_{one}", inner) for one in "qkv"]
        parts += [
            ("f_a_proj", "ssm_f_a", dim),
            ("b_proj", "ssm_beta", self.heads),
            ("g_a_proj", "ssm_g_a", dim),
        ]
        head_norm = tensors.tensor(f"{LAYER}.o_norm.weight", "ssm_norm.weight", dim)
        return KDASpec(
            norm=norm,
            inputs=joined(
                tensors.linear(f"{LAYER}.{name}", gguf, (outputs, self.width))
                for name, gguf, outputs in parts
            ),
            decay=tensors.linear(f"{LAYER}.f_b_proj", "ssm_f_b", (inner, dim)),
            gate=tensors.linear(f"{LAYER}.g_b_proj", "ssm_g_b", (inner, dim)),
            heads=self.heads,
            head_dim=dim,
            convolutions=tuple(
                tensors.tensor(
                    f"{LAYER}.{one}_conv1d.weight",
                    f"ssm_conv1d_{one}.weight",
                    *(inner, 1, self.positions),
                )
                for one in "qkv"
            ),
            log_decay=tensors.tensor(f"{LAYER}.A_log", "ssm_a", 1, 1, self.heads, 1, is_decay=True),
            decay_bias=tensors.tensor(f"{LAYER}.dt_bias", "ssm_dt.bias", inner),
            head_norm=NormSpec(head_norm, self.eps, 0.0),
            output=tensors.linear(f"{LAYER}.o_proj", "attn_output", (self.width, inner)),
        )


def kda(read: ConfigEntries) -> KDASizes:
    return KDASizes(
        width=read.number("hidden_size"),
        heads=read.number("linear_num_heads", 32),
        head_dim=read.number("linear_head_dim", 128),
        positions=read.number("linear_conv_kernel_dim", 4),
        eps=float(read.get("rms_norm_eps", 1e-5)),
    )
