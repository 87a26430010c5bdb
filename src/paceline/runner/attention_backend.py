"""The interface of attention backends over paged memory, and their loader."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from paceline.core import plugins
from paceline.core.arrays import I32
from paceline.core.errors import ConfigError
from paceline.runner.batch import Batch
from paceline.runner.kv_store import KVStore
from paceline.runner.models.config import ModelConfig

PACKAGE = "paceline.runner.attention"  # one file per backend, found by its name


@dataclass(frozen=True, slots=True)
class AttentionSupport:
    """Features that a backend supports, and its needs on the host.

    device          where it runs; on a GPU, CUDA graphs can include rows of one position
    mixed_graphs    CUDA graphs can include rows of any length
    windows         sliding windows
    chunks          chunks in place of windows: see `Prepared.attend`; not needed on a CPU
    caps, sinks     soft caps of scores, and sinks
    latents         cells of one vector, which is key and value: see `LatentSizes`
    mixed_heads     layers with different heads, and layers that read keys of others
    whole_images    positions of an image that read each other: see `Batch.ends`
    is_invariant    a position has the same bits alone, beside others, and in any chunk
    head_dims       head sizes; empty: all
    dtypes          types of keys and values; empty: all
    plans_on_host   the host must know where rows begin
    most_in_flight  most steps in flight; 0: no limit
    """

    device: Literal["cpu", "cuda"] = "cpu"
    mixed_graphs: bool = False
    windows: bool = True
    chunks: bool = False
    caps: bool = True
    sinks: bool = True
    latents: bool = False
    mixed_heads: bool = False
    whole_images: bool = False
    is_invariant: bool = False
    head_dims: tuple[int, ...] = ()
    dtypes: tuple[torch.dtype, ...] = ()
    plans_on_host: bool = False
    most_in_flight: int = 0

    def lacks(self, model: ModelConfig, dtype: torch.dtype) -> list[str]:
        """Unsupported features that a model needs, with KV of this type."""
        found = {
            f"head size {model.head_dim}": self.head_dims and model.head_dim not in self.head_dims,
            f"KV in {dtype}": self.dtypes and dtype not in self.dtypes,
            "sliding windows": not self.windows and any(model.windows),
            "attention in chunks": not (self.chunks or self.device == "cpu") and model.chunk,
            f"scores capped at {model.score_cap}": not self.caps and model.score_cap is not None,
            "sinks": not self.sinks and model.has_sinks,
            "latent attention": not self.latents and model.latent is not None,
            "heads of different shapes": not self.mixed_heads and model.has_mixed_heads,
            "images that read themselves": not self.whole_images and model.reads_images_whole,
        }
        return [name for name, is_lacking in found.items() if is_lacking]


@dataclass(frozen=True, slots=True)
class Queries:
    """Variants of attention that a model uses."""

    heads: int
    dtype: torch.dtype
    is_capped: bool = False  # soft caps of scores
    has_sinks: bool = False  # attention sinks
    has_chunks: bool = False  # windows that are chunks

    @staticmethod
    def of(model: ModelConfig, dtype: torch.dtype) -> "Queries":
        is_capped, has_chunks = model.score_cap is not None, model.chunk is not None
        return Queries(model.heads, dtype, is_capped, model.has_sinks, has_chunks)


class Prepared(ABC):
    """Attention of one step, prepared for all of its layers."""

    rotates = False  # does it implement `attend_new`?

    @abstractmethod
    def attend(
        self,
        query: Tensor,
        layer: int,
        window: int | None,
        scale: float,
        cap: float | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Causal attention of every position over its row, which is in the store already.

        `query` and the result are [positions, heads, head_dim]; of latent attention, the first
        `rank` numbers of a result are meant, and there may be no others. Consecutive heads share
        keys, in equal groups. With a window, a position attends to itself and the window - 1
        positions before it; on a GPU, with a window below zero, to those of its chunk of so many
        positions, up to itself. With a cap, a score s becomes cap * tanh(s / cap). Sinks [heads]
        are additional softmax scores, one per head, without a value.
        """

    def attend_new(
        self,
        qkv: Tensor,
        rotation: Any,
        layer: int,
        window: int | None,
        scale: float,
        cap: float | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Rotate new queries and keys, write keys and values to the store, and attend.

        Use it for few rows: the kernel starts before the GEMM that it waits for has ended, and with
        more rows it would take multiprocessors from that GEMM.
        """
        raise NotImplementedError


class GraphAttention(Prepared):
    """Attention for a CUDA graph: the batch's tensors stay in place while their content changes."""

    @abstractmethod
    def lay_out(self) -> None:
        """Prepare a step on the GPU, for all layers; part of the graph."""

    def refresh(self, contexts: I32) -> None:
        """Prepare a step on the host, before the graph; by default, do nothing."""


class Attention(ABC):
    """An attention backend. It keeps no state of sequences between steps."""

    support: AttentionSupport

    @abstractmethod
    def prepare(self, batch: Batch, kv: KVStore) -> Prepared: ...

    def prepare_graph(self, batch: Batch, kv: KVStore, heads: int) -> GraphAttention:
        """Prepare rows of one position each, of different sequences."""
        raise NotImplementedError

    def prepare_mixed_graph(
        self, batch: Batch, kv: KVStore, bounds: Tensor, longer: int, queries: Queries
    ) -> GraphAttention:
        """Prepare rows of one position up to `bounds[0]`, then `longer` rows up to `bounds[1]`."""
        raise NotImplementedError


def load(name: str) -> Attention:
    """Load a backend by its module name in `attention`, or by the dotted path of a class."""
    kind: Any = plugins.load("attention backend", name, PACKAGE, Attention)
    attention: Attention = kind()
    support: object = getattr(attention, "support", None)
    if not isinstance(support, AttentionSupport):
        raise ConfigError(f"attention backend {name!r} does not declare its support")
    if support.device == "cuda" and kind.prepare_graph is Attention.prepare_graph:
        raise ConfigError(f"attention backend {name!r} is for a GPU and has no prepare_graph")
    if support.mixed_graphs and kind.prepare_mixed_graph is Attention.prepare_mixed_graph:
        raise ConfigError(f"attention backend {name!r} has no prepare_mixed_graph")
    return attention


def load_for(name: str, device: str, usual: str) -> Attention:
    """Load a backend for a device. ConfigError if it does not run there."""
    attention = load(name)
    if attention.support.device != device:
        raise ConfigError(f"attention {name!r} does not run on {device}; use {usual!r}")
    return attention


def check(name: str, attention: Attention, model: ModelConfig, dtype: torch.dtype) -> None:
    """ConfigError if the backend lacks a feature that the model needs."""
    if lacking := attention.support.lacks(model, dtype):
        raise ConfigError(
            f"attention {name!r} does not support {', '.join(lacking)}, which this model needs; "
            "set attention to 'auto'"
        )
