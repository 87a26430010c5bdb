"""Multi-head latent attention (MLA): its description, and the sizes that files give."""

from dataclasses import dataclass
from math import log
from typing import Any, ClassVar

from paceline.core.errors import ConfigError
from paceline.runner.models.config_entries import ConfigEntries
from paceline.runner.models.linear_spec import LinearSpec, NormSpec
from paceline.runner.models.rope import Rope


@dataclass(frozen=True, slots=True)
class LatentQuerySpec:
    """norm(linear(x)): a latent vector, of which all queries are linears."""

    linear: LinearSpec
    norm: NormSpec


@dataclass(frozen=True, slots=True)
class LatentAttentionSpec:
    """Attention whose keys and values are linears of one latent vector: see `LatentSizes`.

    norm                of the residual stream
    query               queries of all heads, of the residual stream or of `query_latent`
    latent              the latent vector, and then the key that rotates
    latent_norm         of the latent vector
    expand              from the latent vector to keys and values: of each head, first its key
    output              from all heads to the width of the residual stream
    heads               of queries, keys and values
    key_dim, value_dim  of each head; the rest of a query rotates
    rope                of this rest, and of the key that rotates
    adjacent_pairs      a checkpoint has pairs of rotated dimensions side by side
    scale               factor of the scores before the softmax
    query_latent        what `query` reads; None: the residual stream
    """

    FEATURE: ClassVar[str] = "mla"

    norm: NormSpec
    query: LinearSpec
    latent: LinearSpec
    latent_norm: NormSpec
    expand: LinearSpec
    output: LinearSpec
    heads: int
    key_dim: int
    value_dim: int
    rope: Rope
    adjacent_pairs: bool
    scale: float
    query_latent: LatentQuerySpec | None = None

    @property
    def rank(self) -> int:
        """Of the latent vector."""
        return self.latent_norm.width

    @property
    def rope_dim(self) -> int:
        return self.latent.outputs - self.rank


@dataclass(frozen=True, slots=True)
class LatentSizes:
    """Keys and values of all heads are linears of one latent vector for each position. What is
    kept of a position is this vector, and beside it a rotated key that all heads share.

        cell    | latent, `rank` numbers | rotated key, `rope_dim` numbers |

    query_rank      of the latent vector that queries are a linear of; None: of the residual stream
    key_dim         dimensions of a head that do not rotate
    rope_dim        dimensions of a head that rotate
    value_dim       of a head
    adjacent_pairs  a checkpoint has pairs of rotated dimensions side by side, x0 y0 x1 y1 …
    """

    rank: int
    query_rank: int | None
    key_dim: int
    rope_dim: int
    value_dim: int
    adjacent_pairs: bool = True

    def __post_init__(self) -> None:
        if min(self.rank, self.query_rank or 1, self.key_dim, self.value_dim) < 1:
            raise ConfigError(f"sizes of latent attention must be positive: {self}")

    @property
    def width(self) -> int:
        """Of a cell."""
        return self.rank + self.rope_dim


def latent_of_hf(read: ConfigEntries) -> LatentSizes:
    return LatentSizes(
        rank=read.number("kv_lora_rank"),
        query_rank=read.get("q_lora_rank"),
        key_dim=read.number("qk_nope_head_dim"),
        rope_dim=read.number("qk_rope_head_dim"),
        value_dim=read.number("v_head_dim"),
        adjacent_pairs=bool(read.get("rope_interleave", True)),
    )


def latent_of_gguf(read: ConfigEntries) -> LatentSizes:
    """Newer files have sizes of a cell as those of keys and values, and those of heads beside."""
    rope_dim = read.number("rope.dimension_count")
    keys, values = (
        read.get(f"attention.{one}_length_mla") or read.number(f"attention.{one}_length")
        for one in ("key", "value")
    )
    return LatentSizes(
        rank=read.number("attention.kv_lora_rank"),
        query_rank=read.get("attention.q_lora_rank"),
        key_dim=keys - rope_dim,
        rope_dim=rope_dim,
        value_dim=values,
    )


def score_scale_of_gguf(read: ConfigEntries, sizes: LatentSizes) -> float:
    """See `score_scale`."""
    growth, factor = read.get("rope.scaling.yarn_log_multiplier", 0.0), 1.0
    if read.get("rope.scaling.type") == "yarn":
        factor = float(read.get("rope.scaling.factor", 1.0))
    return (sizes.key_dim + sizes.rope_dim) ** -0.5 * (growth * log(factor) + 1.0) ** 2


def score_scale(read: ConfigEntries, sizes: LatentSizes) -> float:
    """The factor of scores. With YaRN, it grows by the square of a number that may be in the file,
    where others let queries and keys grow."""
    scale = (sizes.key_dim + sizes.rope_dim) ** -0.5
    scaling: dict[str, Any] = read.get("rope_parameters") or read.get("rope_scaling", {})
    every, factor = scaling.get("mscale_all_dim"), scaling.get("factor")
    if not every or not factor or factor <= 1:
        return scale
    return scale * (0.1 * float(every) * log(float(factor)) + 1.0) ** 2
