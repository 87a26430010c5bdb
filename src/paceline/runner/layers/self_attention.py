"""Attention as a layer: queries, keys and values, their rotation, and the memory of both."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from paceline.runner.attention.backend import Prepared
from paceline.runner.kv_store import KVStore
from paceline.runner.layers.factory import Parts
from paceline.runner.layers.rotary import Rotation
from paceline.runner.models.rope import Frequencies


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """What the layers of one step share."""

    rotations: dict[Frequencies, Rotation]
    kv: KVStore
    cells: Sequence[Tensor]  # [positions], by layer; where it writes
    attention: Prepared


class SelfAttention:
    """Heads lie as queries, keys, values, so that a rotation and a write are one piece each.

    qkv   | q q q q q q q q q | k k k | v v v |      [positions, heads + 2 * kv_heads, head_dim]
            rotated ────────────────┘ written ┘
                                written ──────┘
    """

    def __init__(self, parts: Parts, layer: int, before: Tensor) -> None:
        config, name = parts.config, f"model.layers.{layer}.self_attn"
        self._layer, self._heads, self._head_dim = layer, config.heads, config.head_dim
        self._rotated = config.heads + config.kv_heads
        self.window, self._scale = config.windows[layer], config.query_scale
        self.frequencies = config.rope_of(layer)
        self.qkv = parts.linear([f"{name}.{part}_proj" for part in "qkv"], before)
        self.norm = None
        if config.traits.qk_norm:
            kinds = [(f"{name}.q_norm", config.heads), (f"{name}.k_norm", config.kv_heads)]
            self.norm = parts.head_norm(kinds)
        self.out = parts.linear([f"{name}.o_proj"])

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        """All but the product with `out`, which the block joins to its addition."""
        qkv = self.qkv(x).view(len(x), -1, self._head_dim)
        turning = qkv[:, : self._rotated]
        if self.norm is not None:
            self.norm.apply_to(turning)
        step.rotations[self.frequencies].turn(turning)
        step.kv.put(step.cells[self._layer], qkv[:, self._heads :])
        query = qkv[:, : self._heads]
        found = step.attention.attend(query, self._layer, self.window, self._scale)
        return found.view(len(x), -1)  # [positions, heads * head_dim]
