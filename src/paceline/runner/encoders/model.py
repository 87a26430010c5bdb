"""Text encoders. Attention is bidirectional, so a text is computed in one step."""

from collections import deque
from collections.abc import Mapping, Sequence
from math import log

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from paceline.core.capabilities import Capabilities
from paceline.core.errors import ConfigError
from paceline.core.plan import Plan, StepResult
from paceline.core.pool_spans import PoolSpan, pool_spans, pooled_span
from paceline.core.pooling import PooledSpan
from paceline.core.request import Request
from paceline.runner.encoders.config import TextEncoderConfig
from paceline.runner.encoders.spec import (
    Around,
    EncoderAttention,
    EncoderHead,
    EncoderLayer,
    EncoderLinear,
    EncoderMLP,
    EncoderNorm,
)
from paceline.runner.models.rope import Rope
from paceline.runner.tensors import from_numpy

BUCKETS, FARTHEST = 32, 128  # of MPNet's distances, regardless of its configuration


class Weights:
    """Reads tensors by name. ConfigError if one is missing."""

    def __init__(
        self, tensors: Mapping[str, Tensor], prefix: str, dtype: torch.dtype, device: str
    ) -> None:
        self._tensors, self._dtype, self._device = tensors, dtype, device
        # sentence-transformers omits the prefix.
        self._prefix = prefix if any(name.startswith(prefix) for name in tensors) else ""

    def __call__(self, name: str) -> Tensor:
        found = self._tensors.get(self._prefix + name)
        if found is None and (found := self._tensors.get(name)) is None:
            raise ConfigError(
                f"the checkpoint does not match its configuration; missing: {self._prefix}{name}"
            )
        return found.to(self._device, self._dtype)

    def norm(self, spec: EncoderNorm | None) -> "TextNorm | None":
        return None if spec is None else TextNorm(self, spec)


class TextNorm:
    """A layer norm or a root-mean-square norm."""

    def __init__(self, weights: Weights, spec: EncoderNorm) -> None:
        self._factor = weights(f"{spec.name}.weight")
        self._bias = weights(f"{spec.name}.bias") if spec.has_bias else None
        self._eps, self._is_rms = spec.eps, spec.is_rms
        if spec.offset:
            self._factor = self._factor + spec.offset

    def __call__(self, x: Tensor) -> Tensor:
        shape = self._factor.shape
        if self._is_rms:
            return F.rms_norm(x, shape, self._factor, self._eps)
        return F.layer_norm(x, shape, self._factor, self._bias, self._eps)


class TextLinear:
    """A linear, perhaps of several tensors joined by output."""

    def __init__(self, weights: Weights, spec: EncoderLinear) -> None:
        self._weight = torch.cat([weights(f"{name}.weight") for name in spec.names])
        self._bias = (
            torch.cat([weights(f"{name}.bias") for name in spec.names]) if spec.has_bias else None
        )

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self._weight, self._bias)


class Residual:
    """Adds the output of a sublayer to its input, with the norms around it."""

    def __init__(self, weights: Weights, spec: Around) -> None:
        self._norm = weights.norm(spec.norm)
        self._output_norm = weights.norm(spec.output_norm)
        self._sum_norm = weights.norm(spec.sum_norm)

    def before(self, hidden: Tensor) -> Tensor:
        return hidden if self._norm is None else self._norm(hidden)

    def after(self, hidden: Tensor, output: Tensor) -> Tensor:
        total = hidden + (output if self._output_norm is None else self._output_norm(output))
        return total if self._sum_norm is None else self._sum_norm(total)


class TextAttention:
    def __init__(self, weights: Weights, spec: EncoderAttention) -> None:
        self.spec = spec
        self._around = Residual(weights, spec.around)
        self._qkv = TextLinear(weights, spec.qkv)
        self._output = TextLinear(weights, spec.output)
        self._query_norm, self._key_norm = map(weights.norm, (spec.query_norm, spec.key_norm))

    def __call__(self, hidden: Tensor, mask: Tensor, rotary: "Rotary | None") -> Tensor:
        """`hidden` is [texts, positions, width]; `mask` says which positions may be read, or is
        added to the scores."""
        spec, qkv = self.spec, self._qkv(self._around.before(hidden))
        heads = torch.unflatten(qkv, -1, (-1, spec.head_dim))
        sizes = [spec.heads, spec.kv_heads, spec.kv_heads]
        q, k, v = (one.transpose(1, 2) for one in torch.split(heads, sizes, 2))
        if self._query_norm is not None and self._key_norm is not None:
            q, k = self._query_norm(q), self._key_norm(k)
        if rotary is not None:
            q, k = rotary(q), rotary(k)
        is_grouped = spec.heads != spec.kv_heads
        seen = F.scaled_dot_product_attention(
            q, k, v, mask, scale=spec.scale, enable_gqa=is_grouped
        )
        return self._around.after(hidden, self._output(seen.transpose(1, 2).flatten(2)))


class TextMLP:
    def __init__(self, weights: Weights, spec: EncoderMLP) -> None:
        self._around = Residual(weights, spec.around)
        self._up, self._down = TextLinear(weights, spec.up), TextLinear(weights, spec.down)
        self._activation, self._is_gated = spec.activation, spec.is_gated

    def __call__(self, hidden: Tensor) -> Tensor:
        inner = self._up(self._around.before(hidden))
        if self._is_gated:
            first, second = inner.chunk(2, -1)
            inner = activated(first, self._activation) * second
        else:
            inner = activated(inner, self._activation)
        return self._around.after(hidden, self._down(inner))


class TextHead:
    """The classification head: logits [texts, classes]."""

    def __init__(self, weights: Weights, spec: EncoderHead) -> None:
        self._spec, self._norm = spec, weights.norm(spec.norm)
        self._dense, self._out = TextLinear(weights, spec.dense), TextLinear(weights, spec.out)

    def __call__(self, hidden: Sequence[Tensor]) -> Tensor:
        pooled = torch.stack([one.mean(0) if self._spec.pools_mean else one[0] for one in hidden])
        inner = activated(self._dense(pooled), self._spec.activation)
        return self._out(inner if self._norm is None else self._norm(inner))


class Rotary:
    """Rotary cos/sin tables."""

    def __init__(self, rope: Rope, positions: int, device: str) -> None:
        speed = torch.tensor(rope.frequencies, device=device)
        size = torch.tensor(rope.amplitudes, device=device).repeat(2)
        angle = torch.outer(torch.arange(positions, device=device).float(), speed).repeat(1, 2)
        self._cos, self._sin = angle.cos() * size, angle.sin() * size  # [positions, head_dim]

    def __call__(self, x: Tensor) -> Tensor:
        """`x` is [texts, heads, positions, head_dim]."""
        whole = x.float()
        left, right = whole.chunk(2, -1)
        return (whole * self._cos + torch.cat((-right, left), -1) * self._sin).to(x.dtype)


def activated(x: Tensor, name: str) -> Tensor:
    match name:
        case "relu":
            return F.relu(x)
        case "silu":
            return F.silu(x)
        case "tanh":
            return x.tanh()
        case _:
            return F.gelu(x, approximate="none" if name == "gelu" else "tanh")


class TextEncoder:
    """An encoder with its weights."""

    def __init__(
        self,
        config: TextEncoderConfig,
        tensors: Mapping[str, Tensor],
        dtype: torch.dtype = torch.float32,
        device: str = "cpu",
    ) -> None:
        self.config, self.device, self._dtype = config, device, dtype
        spec, weights = config.spec, Weights(tensors, config.spec.prefix, dtype, device)
        self._words = weights(spec.words)
        self._positions = weights(spec.positions) if spec.positions else None
        self._segments = weights(spec.segments) if spec.segments else None
        self._relative = weights(spec.relative) if spec.relative else None  # [distances, heads]
        self._norm, self._last_norm = map(weights.norm, (spec.norm, spec.last_norm))
        self._layers = [_built(weights, layer) for layer in spec.layers]
        self._head = None if spec.head is None else TextHead(weights, spec.head)

    @torch.inference_mode()
    def forward(self, ids: Sequence[Tensor], separator: int | None = None) -> list[Tensor]:
        """Hidden states [positions, width] of each text. `separator` is the token between the texts
        of a pair."""
        tokens = torch.nn.utils.rnn.pad_sequence(list(ids), batch_first=True).to(self.device)
        lengths = torch.tensor([len(one) for one in ids], device=self.device)
        hidden = self._embedded(tokens, separator)
        masks, rotary = self._masks(lengths, tokens.shape[1]), self._rotary(tokens.shape[1])
        for attention, mlp in self._layers:
            spec = attention.spec
            hidden = mlp(attention(hidden, masks[spec.reach], rotary.get(spec.rope)))
        if self._last_norm is not None:
            hidden = self._last_norm(hidden)
        return [hidden[text, : len(one)] for text, one in enumerate(ids)]

    def _embedded(self, tokens: Tensor, separator: int | None) -> Tensor:
        spec = self.config.spec
        hidden = F.embedding(tokens, self._words)
        if spec.scale != 1.0:
            hidden = hidden * torch.tensor(spec.scale, dtype=self._dtype, device=self.device)
        if self._segments is not None:
            segment = torch.zeros_like(tokens)
            if separator is not None:
                ends = (tokens == separator).long()
                segment = (ends.cumsum(1) - ends).clamp_(max=1)
            hidden = hidden + F.embedding(segment, self._segments)
        if self._positions is not None:
            first = spec.first_position
            hidden = hidden + self._positions[first : first + tokens.shape[1]]
        return hidden if self._norm is None else self._norm(hidden)

    def _masks(self, lengths: Tensor, longest: int) -> dict[int | None, Tensor]:
        """For each reach of the layers, a mask of positions that may be read, [texts, 1, 1 or
        positions, positions]; with relative biases, the amounts to add to the scores."""
        position = torch.arange(longest, device=self.device)
        known = (position < lengths[:, None])[:, None, None, :]
        distance = (position - position[:, None]).abs()
        found: dict[int | None, Tensor] = {}
        for attention, _ in self._layers:
            reach = attention.spec.reach
            if reach is None:
                found[None] = known
            elif reach not in found:
                # Padding attends to itself, since a softmax over nothing is NaN.
                found[reach] = (known & (distance <= reach)) | (distance == 0)
        if self._relative is not None:
            by_distance = F.embedding(buckets(position), self._relative).permute(2, 0, 1)
            found[None] = by_distance.masked_fill(~known, -torch.inf)
        return found

    def _rotary(self, longest: int) -> dict[Rope | None, Rotary]:
        ropes = {attention.spec.rope for attention, _ in self._layers}
        return {rope: Rotary(rope, longest, self.device) for rope in ropes if rope is not None}

    @torch.inference_mode()
    def classified(self, hidden: Sequence[Tensor]) -> Tensor:
        """Logits of classes [texts, classes], from the hidden states of each text."""
        assert self._head is not None
        return self._head(hidden)


def _built(weights: Weights, layer: EncoderLayer) -> tuple[TextAttention, TextMLP]:
    return TextAttention(weights, layer.attention), TextMLP(weights, layer.mlp)


def buckets(position: Tensor) -> Tensor:
    """The bucket of the distance between each two positions. Each direction has half of the
    buckets; of these, half are exact, and the others logarithmic."""
    half, exact = BUCKETS // 2, BUCKETS // 4
    ahead = position - position[:, None]  # [from, to]
    far = ahead.abs()
    grown = (far.clamp(min=1).float() / exact).log() / log(FARTHEST / exact) * (half - exact)
    coarse = (exact + grown.long()).clamp_(max=half - 1)
    return torch.where(far < exact, far, coarse) + half * (ahead > 0)


ALIKE = 1.25  # largest ratio of lengths of texts that are padded to one length


class EncoderRunner:
    """The runner of an encoder. One row computes a whole text, so there is no KV and no state.

    Each text gets one meaningless token, which ends its request.
    """

    capabilities = Capabilities(pooling=True, generation=False)

    def __init__(self, model: TextEncoder, separator: int | None = None) -> None:
        self._model, self._separator = model, separator
        self._requests: dict[int, Request] = {}  # by slot
        self._results: deque[StepResult] = deque()

    def launch(self, plan: Plan) -> None:
        for slot in plan.released:
            self._requests.pop(slot, None)
        for new in plan.admitted:
            self._requests[new.slot] = new.request
        if not plan.empty:
            self._results.append(self._run(plan))

    def wait(self) -> StepResult:
        return self._results.popleft()

    def is_lost(self) -> bool:
        return False

    def close(self) -> None:
        self._results.clear()

    def _run(self, plan: Plan) -> StepResult:
        rows = len(plan.rows)
        spans = pool_spans(plan, plan.start.tolist(), self._requests)
        found: list[PooledSpan] = []
        for group in alike(spans, plan.rows.count.tolist()):
            found += self._pooled(plan, group)
        ids, count = np.zeros((rows, 1), np.int32), np.ones(rows, np.int32)
        return StepResult(ids, count, pooled=tuple(found))

    def _pooled(self, plan: Plan, spans: Sequence[PoolSpan]) -> list[PooledSpan]:
        asked = [self._requests[int(plan.rows.slot[span.row])] for span in spans]
        ids = [from_numpy(one.prompt.astype(np.int64)) for one in asked]
        hidden = self._model.forward(ids, self._separator)
        wanted = zip(hidden, spans, strict=True)
        totals = torch.stack(
            [one[span.first : span.first + span.count].float().sum(0) for one, span in wanted]
        )
        if self._model.config.classes:
            totals = self._model.classified(hidden).float()
        values = totals.cpu().numpy()
        return [pooled_span(plan, span, values[index]) for index, span in enumerate(spans)]


def alike(spans: Sequence[PoolSpan], count: Sequence[int]) -> list[list[PoolSpan]]:
    """Group texts of similar length, so that there is little padding."""
    groups: list[list[PoolSpan]] = []
    for span in sorted(spans, key=lambda span: count[span.row]):
        if groups and count[span.row] <= ALIKE * count[groups[-1][0].row]:
            groups[-1].append(span)
        else:
            groups.append([span])
    return groups
