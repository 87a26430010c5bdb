"""Attention over paged memory: the interface of a backend, and how one is found."""

from dataclasses import dataclass
from importlib import import_module
from typing import Protocol

import torch
from torch import Tensor

from paceline.core.errors import ConfigError
from paceline.runner.batch import Batch
from paceline.runner.kv_store import KVStore

KNOWN = ("flashinfer", "triton", "sdpa", "native", "paged")
EXTRAS = ("flashinfer",)  # packages that an extra of the same name installs


class Prepared(Protocol):
    """What a backend has computed for one step, for all layers of it."""

    def attend(
        self,
        query: Tensor,
        layer: int,
        window: int | None,
        scale: float,
        cap: float | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Causal attention of every position over its row, which the store holds already.

        `query` is [positions, heads, head_dim] and so is the result. Heads share keys in equal
        runs. With a window, a position sees itself and the window - 1 positions before it. With a
        cap, a score s becomes cap * tanh(s / cap). Sinks [heads] are a further score of each head,
        which takes weight and has no value.
        """
        ...


@dataclass(frozen=True, slots=True)
class Queries:
    """The queries of a model."""

    heads: int
    dtype: torch.dtype
    is_capped: bool = False  # whether their scores are
    has_sinks: bool = False  # a further score of each head, without a value


class GraphAttention(Prepared, Protocol):
    """Attention over a batch whose tensors stay where they are while their content changes, for a
    CUDA graph."""

    def lay_out(self) -> None:
        """Prepare a step on the GPU, for all layers; part of the graph."""
        ...


class Attention(Protocol):
    """A way to compute attention. It keeps nothing from one step to the next."""

    def prepare(self, batch: Batch, kv: KVStore) -> Prepared: ...


def runs_on_gpu(attention: Attention) -> bool:
    """Whether a backend can be part of a CUDA graph. Such backends run on GPUs alone."""
    return hasattr(attention, "prepare_graph")


def load(name: str) -> Attention:
    """Load a backend by its module name in `attention`, or by the dotted path of a class."""
    module, _, kind = name.rpartition(".")
    if not module:
        module, kind = f"paceline.runner.attention.{name}", name.capitalize()
        if name not in KNOWN:
            known = ", ".join(KNOWN)
            raise ConfigError(
                f"unknown attention backend {name!r}: choose {known}, or the dotted path of a class"
            )
    try:
        return getattr(import_module(module), kind)()
    except ModuleNotFoundError as error:
        how = f"; pip install 'paceline[{error.name}]'" if error.name in EXTRAS else ""
        raise ConfigError(f"attention backend {name!r} cannot be imported: {error}{how}") from None
    except (ImportError, AttributeError, TypeError) as error:
        raise ConfigError(f"attention backend {name!r} cannot be loaded: {error}") from None
