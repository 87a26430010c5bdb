"""Gated delta nets, as Qwen3-Next and Qwen3.5 have them."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from paceline.core.errors import ConfigError
from paceline.runner.models.config_entries import ConfigEntries
from paceline.runner.models.description.tensors import joined
from paceline.runner.models.linear_spec import LinearSpec, NormSpec
from paceline.runner.models.states.state_sizes import NamedTensors, StateTensor, StateUpdate
from paceline.runner.models.tensor_spec import Run, TensorSpec

LAYER = "linear_attn"
FROM_GGUF = "from_gguf"  # an entry of headers


@dataclass(frozen=True, slots=True)
class GatedDeltaSpec:
    """x + output(head_norm(read) * silu(gate)), of a state [key_dim, value_dim] for each head.

        state = exp(decay) * state
        state = state + key * (rate * (value - key @ state))
        read  = query @ state

    Queries, keys and values pass a convolution over the last positions and silu; queries and keys
    then have length 1, and queries are divided by sqrt(key_dim). `rate` is a sigmoid, and `decay`
    is -exp(log_decay) * softplus(… + decay_bias). Several consecutive heads of values share a head
    of queries and keys.

    inputs        queries, keys, values, gates, rates and decays
    by_key_head   outputs of `inputs` are so ordered within each key head: once up to the gates, and
                  once for rates and decays; otherwise over all heads
    convolution   [channels, 1, positions], of queries, keys and values
    log_decay     [value_heads]
    decay_bias    [value_heads]
    head_norm     of what each head reads
    """

    FEATURE: ClassVar[str] = "gated_delta"

    norm: NormSpec
    inputs: LinearSpec
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    by_key_head: bool
    convolution: TensorSpec
    log_decay: TensorSpec
    decay_bias: TensorSpec
    head_norm: NormSpec
    output: LinearSpec

    @property
    def channels(self) -> int:
        """Of queries, keys and values."""
        return self.convolution.shape[0]

    @property
    def kept(self) -> tuple[StateTensor, ...]:
        state = (self.value_heads, self.key_dim, self.value_dim)
        tail = (self.convolution.shape[-1] - 1, self.channels)
        return StateTensor(state, is_recurrent=True), StateTensor(tail, is_recurrent=False)

    @property
    def update(self) -> StateUpdate:
        keys, values = self.key_heads * self.key_dim, self.value_heads * self.value_dim
        return StateUpdate(self.value_heads, keys, values)


@dataclass(frozen=True, slots=True)
class GatedDeltaSizes:
    """See `GatedDeltaSpec`. The convolution covers `positions` positions.

    is_tiled   in GGUF files, the first heads of values of all key heads come first, then all second
               ones, and so on
    """

    width: int
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    positions: int
    eps: float
    by_key_head: bool
    is_tiled: bool

    def __post_init__(self) -> None:
        if self.value_heads % self.key_heads:
            raise ConfigError(
                f"linear_num_value_heads ({self.value_heads}) must be a multiple of "
                f"linear_num_key_heads ({self.key_heads})"
            )

    def describe(self, tensors: NamedTensors, norm: NormSpec) -> GatedDeltaSpec:
        keys, values = self.key_heads * self.key_dim, self.value_heads * self.value_dim
        channels = 2 * keys + values
        head_norm = tensors.tensor(f"{LAYER}.norm.weight", "ssm_norm.weight", self.value_dim)
        return GatedDeltaSpec(
            norm=norm,
            inputs=joined(self._inputs(tensors, channels, values)),
            key_heads=self.key_heads,
            value_heads=self.value_heads,
            key_dim=self.key_dim,
            value_dim=self.value_dim,
            by_key_head=self.by_key_head,
            convolution=with_form(
                tensors.tensor(
                    f"{LAYER}.conv1d.weight", "ssm_conv1d.weight", channels, 1, self.positions
                ),
                rows=self._tiled(self.value_dim, 2 * keys),
            ),
            log_decay=with_form(
                tensors.tensor(f"{LAYER}.A_log", "ssm_a", self.value_heads, is_decay=True),
                rows=self._tiled(1),
            ),
            decay_bias=with_form(
                tensors.tensor(f"{LAYER}.dt_bias", "ssm_dt.bias", self.value_heads),
                rows=self._tiled(1),
            ),
            head_norm=NormSpec(head_norm, self.eps, 0.0),
            output=linear_with_form(
                tensors.linear(f"{LAYER}.out_proj", "ssm_out", (self.width, values)),
                columns=self._tiled(self.value_dim),
            ),
        )

    def _inputs(self, tensors: NamedTensors, channels: int, values: int) -> Iterator[LinearSpec]:
        if self.by_key_head:
            outputs = {"qkvz": channels + values, "ba": 2 * self.value_heads}
            for name, size in outputs.items():
                yield tensors.linear(f"{LAYER}.in_proj_{name}", f"ssm_{name}", (size, self.width))
            return
        heads = self.value_heads
        parts = {
            "qkv": ("attn_qkv", channels, self._tiled(self.value_dim, channels - values)),
            "z": ("attn_gate", values, self._tiled(self.value_dim)),
            "b": ("ssm_beta", heads, self._tiled(1)),
            "a": ("ssm_alpha", heads, self._tiled(1)),
        }
        if not self.is_tiled:  # one tensor has rates and decays, by key head
            parts |= {name: ("ssm_ba", heads, self._apart(name)) for name in "ba"}
        for name, (stored, size, rows) in parts.items():
            linear = tensors.linear(f"{LAYER}.in_proj_{name}", stored, (size, self.width))
            yield linear_with_form(linear, rows=rows)

    def _tiled(self, size: int, before: int = 0) -> tuple[Run, ...]:
        """Where heads of values of so many rows each are in a GGUF file, behind other rows."""
        if not self.is_tiled or self.value_heads == self.key_heads:
            return ()
        each = self.value_heads // self.key_heads
        heads = (
            at * self.key_heads + key_head
            for key_head in range(self.key_heads)
            for at in range(each)
        )
        runs = ((before + head * size, before + (head + 1) * size) for head in heads)
        return (*([(0, before)] if before else []), *runs)

    def _apart(self, name: str) -> tuple[Run, ...]:
        """The rates or decays of all heads, where those of a key head are adjacent."""
        each = self.value_heads // self.key_heads
        first = 0 if name == "b" else each
        begins = (2 * each * key_head + first for key_head in range(self.key_heads))
        return tuple((begin, begin + each) for begin in begins)


def with_form(tensor: TensorSpec, **changes: Any) -> TensorSpec:
    """A tensor whose form in GGUF files is changed."""
    return replace(tensor, gguf=replace(tensor.gguf, **changes))


def linear_with_form(linear: LinearSpec, **changes: Any) -> LinearSpec:
    return replace(linear, weights=tuple(with_form(one, **changes) for one in linear.weights))


def gated_delta(read: ConfigEntries) -> GatedDeltaSizes:
    """The sizes of Qwen3.5."""
    return _sizes(read, by_key_head=False, is_tiled=True)


def gated_delta_by_key_head(read: ConfigEntries) -> GatedDeltaSizes:
    """The sizes of Qwen3-Next. In GGUF files, queries, keys, values and gates are apart."""
    return _sizes(read, by_key_head=not read.get(FROM_GGUF), is_tiled=False)


def _sizes(read: ConfigEntries, by_key_head: bool, is_tiled: bool) -> GatedDeltaSizes:
    return GatedDeltaSizes(
        width=read.number("hidden_size"),
        key_heads=read.number("linear_num_key_heads", 16),
        value_heads=read.number("linear_num_value_heads", 32),
        key_dim=read.number("linear_key_head_dim", 128),
        value_dim=read.number("linear_value_head_dim", 128),
        positions=read.number("linear_conv_kernel_dim", 4),
        eps=float(read.get("rms_norm_eps", 1e-6)),
        by_key_head=by_key_head,
        is_tiled=is_tiled,
    )
