"""Attention over paged memory: what a model asks of it, and where it is found."""

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
    """What a backend worked out for one step, for all layers of it."""

    def attend(self, query: Tensor, layer: int, window: int | None, scale: float) -> Tensor:
        """Causal attention of every position over its row, which the store holds already.

        `query` is [positions, heads, head_dim] and so is the result. Heads share keys in equal
        runs. With a window, a position sees itself and the window - 1 before it.
        """
        ...


@dataclass(frozen=True, slots=True)
class Queries:
    """What a model asks with."""

    heads: int
    dtype: torch.dtype


class Laid(Prepared, Protocol):
    """Attention over a fixed batch in a graph, whose tensors change while it stays."""

    def lay_out(self) -> None:
        """What the card has to prepare for all layers; part of the graph."""
        ...


class Attention(Protocol):
    """A way to compute attention. It keeps nothing of one step for another."""

    def prepare(self, batch: Batch, kv: KVStore) -> Prepared: ...


def is_for_a_card(attention: Attention) -> bool:
    """Can it be part of a graph? What can runs nowhere else."""
    return hasattr(attention, "hold")


def load(name: str) -> Attention:
    """The backend by module name in `attention`, or by dotted path to a class."""
    module, _, kind = name.rpartition(".")
    if not module:
        module, kind = f"paceline.runner.attention.{name}", name.capitalize()
        if name not in KNOWN:
            known = ", ".join(KNOWN)
            raise ConfigError(f"no attention backend {name!r}: there are {known}, and dotted paths")
    try:
        return getattr(import_module(module), kind)()
    except ModuleNotFoundError as error:
        how = f"; pip install 'paceline[{error.name}]'" if error.name in EXTRAS else ""
        raise ConfigError(f"no attention backend {name!r}: {error}{how}") from None
    except (ImportError, AttributeError, TypeError) as error:
        raise ConfigError(f"no attention backend {name!r}: {error}") from None
