"""Build layers from a checkpoint and its description."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from math import ceil, inf, log2
from typing import Generic, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from paceline.core.errors import ConfigError
from paceline.runner.layers.linear import Linear, LinearParts
from paceline.runner.layers.norm import HeadNorm, Norm, UnscaledNorm, WholeHeadNorm
from paceline.runner.models.architecture import AttentionSpec, DecoderSpec, HeadNorms
from paceline.runner.models.linear_spec import KVScale, LinearSpec, Multiplier, NormSpec
from paceline.runner.models.tensor_spec import TensorSpec
from paceline.runner.parallel.group import GatheredLinear, RankGroup, SplitEmbedding, SummedLinear
from paceline.runner.weights.checkpoint import Checkpoint, MatrixReader, read_part
from paceline.runner.weights.matrix import Matrix, PlainMatrix, joined

HALVES = (torch.bfloat16, torch.float16)
L_co = TypeVar("L_co", bound=Linear, covariant=True)


@dataclass(frozen=True, slots=True, eq=False)
class LayerFactory(Generic[L_co]):
    """Builds layers from a checkpoint, with the linears of a device.

    All tensors but the weights of linears are read in float32, and rounded once. Layers of an
    invariant model compute a row with the same bits beside any other rows.
    """

    checkpoint: Checkpoint
    dtype: torch.dtype
    device: torch.device | str
    build: Callable[[LinearParts], L_co]
    group: RankGroup | None = None  # None: the model is not divided
    is_invariant: bool = False

    def read(self, tensor: TensorSpec) -> Tensor:
        return self.read_stored(tensor).to(torch.float32)

    def read_stored(self, tensor: TensorSpec) -> Tensor:
        """Read a tensor in the type of the file."""
        if tensor.cut is None:
            found = self.checkpoint.read(tensor.name)
        else:
            found = read_part(self.checkpoint, tensor.name, tensor.cut)
        return found.to(self.device)

    def joined(self, tensors: tuple[TensorSpec, ...]) -> Tensor:
        """Concatenate tensors along the first dimension."""
        read = [self.read(tensor) for tensor in tensors]
        return torch.cat(read) if len(read) > 1 else read[0]

    def embedding_scale(self, spec: DecoderSpec) -> float:
        """The factor of the embedding, rounded if that is what the model was trained with."""
        scale = spec.embedding_scale
        return float(torch.tensor(scale, dtype=self.dtype)) if spec.rounds_scale else scale

    def unscaled_norm(self, norm: NormSpec) -> UnscaledNorm:
        return UnscaledNorm(norm.floor, self.device, norm.centred)

    def input_norm(self, norm: NormSpec | None) -> Callable[[Tensor], Tensor]:
        """The norm before a linear that has the norm's `folded` factor."""
        if norm is None:
            return whole
        return self.unscaled_norm(norm) if norm.bias is None else self.norm(norm)

    def folded(self, norm: NormSpec | None) -> Tensor | None:
        """The factor of a norm that is folded into the linear after it, [width]. A norm with a bias
        has its factor itself."""
        return None if norm is None or norm.bias is not None else self.factor(norm)

    def factor(self, norm: NormSpec) -> Tensor:
        """The factor sqrt(width) * weight of a norm, [width]."""
        if isinstance(norm.weight, int):
            weight = torch.ones(norm.weight, device=self.device)
        else:
            weight = self.read(norm.weight) + norm.offset
        return weight.mul_(norm.width**0.5 * self.scale(norm.scale))

    def scale(self, scale: KVScale | Multiplier | None) -> float:
        """The factor of weights for a scale that is folded into them."""
        if scale is None:
            return 1.0
        if isinstance(scale, Multiplier):
            return scale.weights
        found = float(self.read(scale.tensor))
        if not (0 < found < inf):
            raise ConfigError(f"tensor {scale.tensor.name!r} is {found}; a scale must be positive")
        rounded = 2.0 ** ceil(log2(found))
        return 1 / rounded if scale.divides else rounded

    def value_norm(self, attention: AttentionSpec) -> HeadNorm | None:
        """The norm of values, which has no weight."""
        if (eps := attention.value_norm) is None:
            return None
        dim = attention.head_dim
        factor = torch.tensor(dim**0.5, dtype=self.dtype, device=self.device)
        return HeadNorm(UnscaledNorm((dim * eps) ** 0.5, self.device), factor)

    def head_factor(self, attention: AttentionSpec, norms: HeadNorms) -> Tensor:
        """The norm factors of all query heads, then key heads, [heads + kv_heads, head_dim]."""
        query = self.factor(norms.query).view(-1, attention.head_dim)
        key = self.factor(norms.key).view(-1, attention.head_dim)
        heads = query.expand(attention.heads, -1), key.expand(attention.own_kv_heads, -1)
        return torch.cat(heads)[:, paired_order(attention)]

    def norm(self, norm: NormSpec) -> Norm:
        bias = None if norm.bias is None else self.read(norm.bias).to(self.dtype)
        return Norm(self.unscaled_norm(norm), self.factor(norm).to(self.dtype), bias)

    def optional_norm(self, norm: NormSpec | None) -> Norm | None:
        return None if norm is None else self.norm(norm)

    def head_norm(self, attention: AttentionSpec) -> HeadNorm | WholeHeadNorm | None:
        """The norm of queries and keys, which are adjacent."""
        if (norms := attention.head_norms) is None:
            return None
        factor = self.head_factor(attention, norms).to(self.dtype)
        query, key = self.unscaled_norm(norms.query), self.unscaled_norm(norms.key)
        if norms.whole:
            return WholeHeadNorm(query, key, attention.heads, factor)
        return HeadNorm(query, factor)

    def linear(
        self, linear: LinearSpec, before: NormSpec | None = None, order: Tensor | None = None
    ) -> L_co:
        """A linear that also applies the factor of the norm `before` it, if given. With `order`,
        its outputs are those of the checkpoint in this order."""
        return self.build(self._ordered(self.parts(linear, before), linear, order))

    def _ordered(self, parts: LinearParts, linear: LinearSpec, order: Tensor | None) -> LinearParts:
        if order is None:
            return parts
        order = order.to(self.device)
        bias = None if parts.bias is None else parts.bias[order]
        return replace(parts, read=partial(self._selected, linear, order), bias=bias)

    def parts(self, linear: LinearSpec, before: NormSpec | None = None) -> LinearParts:
        bias = torch.cat(list(self._biases(linear))) if linear.biases else None  # [outputs]
        factor = self.folded(before)  # [inputs]
        read = partial(self.matrix, linear)
        return LinearParts(linear.name, read, bias, factor, self.dtype)

    def matrix(self, linear: LinearSpec) -> Matrix:
        """The weights of a linear, [outputs, inputs]."""
        return joined(list(self._matrices(linear)))

    def _matrices(self, linear: LinearSpec) -> Iterator[Matrix]:
        parts = zip(linear.weights, linear.formats, linear.scales, strict=True)
        for weight, format, scale in parts:
            if format is None:
                found = self._unformatted(weight)
            else:
                found = format.read(weight, self.read_stored)
            yield found if scale is None else found.scaled(self.scale(scale))

    def _unformatted(self, weight: TensorSpec) -> Matrix:
        """Weights without a format: as the checkpoint has them, or their numbers."""
        found, checkpoint = None, self.checkpoint
        if isinstance(checkpoint, MatrixReader) and weight.cut is None:
            found = checkpoint.matrix(weight.name)
        if found is None:
            return PlainMatrix(self.read(weight))
        return found.with_tensors(tensor.to(self.device) for tensor in found.tensors)

    def _biases(self, linear: LinearSpec) -> Iterator[Tensor]:
        for bias, scale in zip(linear.biases, linear.scales, strict=True):
            found = self.read(bias)
            if isinstance(scale, Multiplier):
                found = found * scale.biases
            elif scale is not None and scale.has_bias:
                found = found * self.scale(scale)
            yield found

    def summed(self, linear: LinearSpec) -> Linear:
        """A linear whose results are summed over ranks, if there are several."""
        part = self.linear(linear)
        return part if self.group is None else SummedLinear(part, self.group)

    def head(
        self, linear: LinearSpec, before: NormSpec | None = None, scale: float = 1.0
    ) -> Linear:
        """A linear whose outputs are gathered on rank 0; other ranks get none. The scale is
        folded into the factor of the norm before it."""
        parts = self.parts(linear, before)
        if scale != 1.0:
            assert parts.factor is not None
            parts = replace(parts, factor=parts.factor * scale)
        part = self.build(parts)
        return part if self.group is None else GatheredLinear(part, self.group)

    def embedding_table(self, tensor: TensorSpec) -> Tensor:
        """The embedding of each token id, [vocab, width]. A table of 16 bits stays so where layers
        compute in 32: rows are widened when they are read."""
        found = self.read_stored(tensor)
        keeps = found.dtype in HALVES and self.dtype == torch.float32 and self.group is None
        return found.clone() if keeps else found.to(self.dtype)

    def embedding(self, table: Tensor, ids: int | None = None) -> Callable[[Tensor], Tensor]:
        """Maps token ids [n] to embeddings [n, width]; each rank has a part of the table. After the
        first `ids` rows, rank 0 has rows for ids beyond all token ids."""
        if self.group is not None:
            return SplitEmbedding(table, self.group, len(table) if ids is None else ids)
        return partial(F.embedding, weight=table)

    def sum_over_ranks(self) -> Callable[[Tensor], Tensor]:
        """A function that sums a tensor over all ranks in place."""
        if self.group is None:
            return whole
        return self.group.sum_in_order if self.is_invariant else self.group.sum

    def share_among_ranks(self) -> Callable[[Tensor], Tensor]:
        """A function that broadcasts a tensor of rank 0 in place."""
        return whole if self.group is None else self.group.share

    def router(self, linear: LinearSpec, before: NormSpec | TensorSpec) -> Tensor:
        """The weights of a router, [experts, width], with the factor of the norm before it, or with
        that which a tensor has.

        They stay in float32, since rounding may change the choice of experts.
        """
        factor = self.read(before) if isinstance(before, TensorSpec) else self.factor(before)
        return self.joined(linear.weights).mul_(factor)

    def qkv(self, attention: AttentionSpec) -> L_co:
        """The linear for gates, queries, keys and values, in `attention_order`."""
        parts = self.parts(attention.qkv, attention.norm)
        if parts.factor is not None and attention.second_norm is not None:
            both = parts.factor, self.factor(attention.second_norm)
            parts = replace(parts, factor=torch.cat(both))
        return self.build(self._ordered(parts, attention.qkv, attention_order(attention)))

    def reordered(self, linear: LinearSpec, outputs: Tensor, before: NormSpec) -> L_co:
        """A linear with its outputs in another order, and the factor of the norm before it."""
        parts, order = self.parts(linear, before), outputs.to(self.device)
        bias = None if parts.bias is None else parts.bias[order]
        return self.build(replace(parts, read=partial(self._selected, linear, order), bias=bias))

    def _selected(self, linear: LinearSpec, outputs: Tensor) -> Matrix:
        return self.matrix(linear).select(outputs)


def whole(total: Tensor) -> Tensor:
    """Return the tensor: there is only one rank."""
    return total


def paired_order(attention: AttentionSpec) -> list[int]:
    """An order of the dimensions of a head in which pair i is (x[i], x[i + head_dim / 2]).

    Checkpoints have such pairs only within the rotated dimensions, which come first, or have the
    two of a pair side by side:

        checkpoint   x0 x1 y0 y1 | a b c d, or x0 y0 x1 y1 | a b c d
        here         x0 x1 a b     y0 y1 c d

    Scores do not depend on the order of dimensions if it is the same for queries and keys. So
    layers rotate whole heads, and the rope does not change the other pairs.
    """
    dims, rotated = range(attention.head_dim), attention.rotary_dim
    turning, rest = list(dims[:rotated]), dims[rotated:]
    if attention.adjacent_pairs:
        turning = turning[::2] + turning[1::2]
    return [
        *(*turning[: rotated // 2], *rest[: len(rest) // 2]),
        *(*turning[rotated // 2 :], *rest[len(rest) // 2 :]),
    ]


def attention_order(attention: AttentionSpec) -> Tensor | None:
    """Where the outputs of gates, queries, keys and values come from, [outputs]; None: as they are.

    Queries and keys are in `paired_order`. In a checkpoint, the gate of a head follows its query;
    here all gates come first.
    """
    order = paired_order(attention)
    if order == list(range(attention.head_dim)) and not attention.gated:
        return None
    rows = torch.arange(attention.qkv.outputs).view(-1, attention.head_dim)
    if attention.gated:
        queries, rest = rows[: 2 * attention.heads], rows[2 * attention.heads :]
        rows = torch.cat((queries[1::2], queries[::2], rest))
    first = attention.gates
    rotated = rows[first : first + attention.heads + attention.kv_heads]
    rotated.copy_(rotated[:, order])
    return rows.flatten()
