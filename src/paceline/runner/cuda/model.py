"""A decoder of any architecture on a card: few kernels, each with as much in it as will go."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor

from paceline.runner.attention.backend import Prepared
from paceline.runner.batch import Batch
from paceline.runner.cuda.kernels.few_rows import MOST_ROWS, add, normed
from paceline.runner.cuda.kernels.layers import (
    Late,
    Turn,
    add_direction,
    direction,
    gated,
    turn_and_put,
)
from paceline.runner.cuda.kernels.split_k import Split
from paceline.runner.cuda.kernels.streamed_gemm import Streamed
from paceline.runner.kv_store import KVStore
from paceline.runner.layers.factory import Parts
from paceline.runner.layers.linear import Dense
from paceline.runner.models.rope import Frequencies
from paceline.runner.weights.checkpoint import Checkpoint, verify

# Rows up to which a norm after the product is cheaper than a kernel before it; beyond so many
# inputs, every program that needs a row's length has too much to read.
LATE_ROWS, LATE_WIDTH, LATE_ROWS_WIDE = 512, 2048, 64

# Rows up to which reading the weights takes longer than anything the library is better at.
STREAMED_ROWS, STREAMED_SUM_ROWS, STREAMED_GATED_ROWS = 64, 128, 192


@runtime_checkable
class Turning(Protocol):
    """Attention that turns new queries and keys and writes to the store by itself.

    For few rows, which are read early: for more, it is in the way of what it waits for.
    """

    def attend_new(
        self, qkv: Tensor, turn: Turn, layer: int, window: int | None, scale: float
    ) -> Tensor: ...


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """What the layers of one step share."""

    position: Tensor  # [positions]
    cells: Tensor  # [positions]; where in the first layer of the store each is written
    kv: KVStore
    attention: Prepared


class Block:
    """One layer. The residual stream is added to by the products themselves."""

    def __init__(self, parts: Parts, layer: int, turns: Tensor) -> None:
        config, name = parts.config, f"model.layers.{layer}"
        traits, attention = config.traits, f"{name}.self_attn"
        before_mlp = "pre_feedforward" if traits.post_norms else "post_attention"
        self._layer, self._head_dim, self._heads = layer, config.head_dim, config.heads
        self._window, self._scale = config.windows[layer], config.query_scale
        self._is_silu = traits.activation == "silu"
        qkv = [f"{attention}.{part}_proj" for part in "qkv"]
        gate_up = [f"{name}.mlp.{part}_proj" for part in ("gate", "up")]
        self._qkv = Normed(parts, qkv, f"{name}.input_layernorm")
        self._gate_up = Normed(parts, gate_up, f"{name}.{before_mlp}_layernorm", is_gated=True)
        self._out = Sum(parts, f"{attention}.o_proj", f"{name}.post_attention_layernorm")
        self._down = Sum(parts, f"{name}.mlp.down_proj", f"{name}.post_feedforward_layernorm")
        self._turn = Turn(turns, None, 0.0)
        if traits.qk_norm:
            kinds = (("q", config.heads), ("k", config.kv_heads))
            factors = [
                parts.factor(f"{attention}.{kind}_norm").expand(heads, -1) for kind, heads in kinds
            ]
            factor = torch.cat(factors).to(parts.dtype)  # [heads + kv_heads, head_dim]
            self._turn = Turn(turns, factor, floor_of(parts, config.head_dim))

    def __call__(self, hidden: Tensor, step: Step, wanted: Tensor | None = None) -> Tensor:
        """The residual stream after this layer, of all positions or of those that are wanted."""
        n, attention, how = len(hidden), step.attention, (self._layer, self._window, self._scale)
        turning = attention if n <= MOST_ROWS and isinstance(attention, Turning) else None
        # It reads the store while the product runs, so all before the product must have ended.
        found, late = self._qkv(hidden, is_ordered=turning is not None)
        qkv = found.view(n, -1, self._head_dim)
        if turning is not None:
            seen = turning.attend_new(qkv, self._turn, *how)
        else:
            turn_and_put(qkv, self._turn, late, step.position, step.cells, step.kv, self._layer)
            seen = attention.attend(qkv[:, : self._heads], *how)
        seen = seen.view(n, -1)
        if wanted is not None:
            hidden, seen = hidden.index_select(0, wanted), seen.index_select(0, wanted)
            if not len(wanted):
                return hidden
        self._out(hidden, seen)
        self._down(hidden, self._gate_up.gated(hidden, self._is_silu))
        return hidden


class Normed:
    """A product of the normalised residual stream. Its norm comes when it is cheapest.

    Few rows are divided by their lengths after the product, by the kernel that comes next, or
    inside it; for many it is cheaper to do it before, once.
    """

    def __init__(self, parts: Parts, names: list[str], norm: str, is_gated: bool = False) -> None:
        product = parts.linear(names, parts.factor(norm))
        assert isinstance(product, Dense)
        self._product, self._streamed = product, Streamed(product, is_gated)
        self._floor = floor_of(parts, parts.config.width)

    def __call__(self, hidden: Tensor, is_ordered: bool = False) -> tuple[Tensor, Late]:
        if len(hidden) <= MOST_ROWS:
            found = normed(hidden, self._product, self._floor, is_ordered=is_ordered)
            return found, Late(hidden, 0.0, 0)
        most = LATE_ROWS if hidden.shape[1] <= LATE_WIDTH else LATE_ROWS_WIDE
        is_narrow = hidden.dtype == torch.float16  # products of long rows are out of its range
        if len(hidden) > most or is_narrow or self._product.bias is not None:
            return self._product(direction(hidden, self._floor)), Late(hidden, 0.0, 0)
        late = Late(hidden, self._floor, hidden.shape[1])
        if self._streamed.takes(len(hidden), STREAMED_ROWS):
            return self._streamed(hidden), late
        return self._product(hidden), late

    def gated(self, hidden: Tensor, is_silu: bool) -> Tensor:
        """Of a product that makes pairs: act(one) * other."""
        if len(hidden) <= MOST_ROWS:
            return normed(hidden, self._product, self._floor, is_silu)
        if self._streamed.takes(len(hidden), STREAMED_GATED_ROWS):
            if self._streamed.can_norm:
                return self._streamed.gated(hidden, is_silu, self._floor)
            return self._streamed.gated(direction(hidden, self._floor), is_silu)
        found, late = self(hidden)
        return gated(found, is_silu, late)


class Sum:
    """Adds a product to the residual stream, where an architecture wants it through a norm."""

    def __init__(self, parts: Parts, name: str, norm: str) -> None:
        product = parts.linear([name])
        assert isinstance(product, Dense)
        self._product, self._split, self._streamed = product, Split(product), Streamed(product)
        self._norm = None
        if parts.config.traits.post_norms:
            self._norm = parts.factor(norm), floor_of(parts, parts.config.width)

    def __call__(self, hidden: Tensor, x: Tensor) -> None:
        if self._norm is not None:
            add_direction(hidden, self._product(x), *self._norm)
        elif len(x) <= MOST_ROWS:
            add(hidden, x, self._product)
        elif self._split.takes(len(x)):
            self._split.add(hidden, x)
        elif self._streamed.takes(len(x), STREAMED_SUM_ROWS):
            self._streamed.add_to(hidden, x)
        else:
            self._product.add_to(hidden, x)


def floor_of(parts: Parts, width: int) -> float:
    """The least length of a norm's input: see `layers.norm`."""
    return (width * parts.config.norm_eps) ** 0.5


def turns_of(frequencies: Frequencies, positions: int, device: torch.device | str) -> Tensor:
    """Cosines and sines of every position, [positions, 2, head_dim / 2] in float32."""
    each = torch.arange(positions, device=device, dtype=torch.float32)
    angle = each[:, None] * torch.tensor(frequencies, device=device)
    return torch.stack((angle.cos(), angle.sin()), dim=1).contiguous()


class CudaModel:
    """Weights on a card in their final form. A forward changes nothing but the store."""

    def __init__(self, parts: Parts, max_model_len: int) -> None:
        config = self.config = parts.config
        self.dtype = parts.dtype
        scale = torch.tensor(config.embedding_scale, dtype=parts.dtype)  # as rough as in training
        self._embedding = parts.read("model.embed_tokens.weight").to(parts.dtype).mul_(scale)
        turns = {
            rope: turns_of(rope, max_model_len + 1, parts.device)
            for rope in dict.fromkeys(map(config.rope_of, range(config.layers)))
        }
        self._blocks = [
            Block(parts, layer, turns[config.rope_of(layer)]) for layer in range(config.layers)
        ]
        self._floor = floor_of(parts, config.width)
        head = "model.embed_tokens" if config.tied_embedding else "lm_head"
        self._head = parts.linear([head], parts.factor("model.norm"))

    @staticmethod
    def load(
        checkpoint: Checkpoint,
        max_model_len: int,
        dtype: torch.dtype = torch.bfloat16,
        device: torch.device | str = "cuda",
    ) -> "CudaModel":
        verify(checkpoint)
        with torch.inference_mode():
            return CudaModel(Parts(checkpoint, dtype, device, Dense), max_model_len)

    @torch.inference_mode()
    def forward(
        self,
        batch: Batch,
        cells: Tensor,
        kv: KVStore,
        attention: Prepared,
        wanted: Tensor | None = None,
    ) -> Tensor:
        """Hidden states of every position, or of those that are wanted, in their order; k and v
        of all are in the store. Behind the last attention nobody needs the others."""
        hidden = F.embedding(batch.tokens, self._embedding)
        step = Step(batch.position, cells, kv, attention)
        for block in self._blocks[:-1]:
            block(hidden, step)
        return self._blocks[-1](hidden, step, wanted)

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """Scores of every token id after the given positions, [n, vocab] in the model's type."""
        return self._head(direction(hidden, self._floor))
