"""Which kind of product a model is built of: by name, or by a short measurement."""

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from math import prod
from time import perf_counter

import torch
from torch import Tensor

from paceline.core.errors import ConfigError
from paceline.runner.layers.linear import Dense, Linear, LinearKind
from paceline.runner.layers.native import Native
from paceline.runner.models.config import ModelConfig
from paceline.runner.native.library import is_available

# Weights that 4 bits hold without loss are kept so by "int8", and are faster than those of 8, which
# are the ones that are measured.
KINDS: Mapping[str, LinearKind] = {"float32": Dense, "int8": Native}
AUTO = "auto"
ROWS = (1, 8, 32, 512)  # one stream, some, many, and a chunk of a prompt
TRIES = 4


@dataclass(frozen=True, slots=True)
class Choice:
    """A kind of product, and what was measured to choose it: nothing, if it was named."""

    name: str
    measured_s: Mapping[str, tuple[float, ...]]  # seconds of one layer's products, as in ROWS

    @property
    def kind(self) -> LinearKind:
        return KINDS[self.name]

    def __str__(self) -> str:
        figures = (
            f"{name} " + " / ".join(f"{1e3 * s:.2f}" for s in seconds)
            for name, seconds in self.measured_s.items()
        )
        rows = " / ".join(map(str, ROWS))
        reason = f"ms of a layer at {rows} rows: {'; '.join(figures)}"
        return f"{self.name} ({reason if self.measured_s else 'as asked'})"


def choose(name: str, config: ModelConfig) -> Choice:
    """The kind of this name; of "auto", the one that is fastest on shapes of the model."""
    if name == AUTO:
        names = [known for known, kind in KINDS.items() if kind is not Native or is_available()]
        measured = {known: measure(KINDS[known], config) for known in names}
        # Their product weighs every number of rows the same, whatever it takes.
        return Choice(min(measured, key=lambda known: prod(measured[known])), measured)
    if name not in KINDS:
        known = [AUTO, *KINDS]
        close = get_close_matches(name, known, 1, cutoff=0.3)
        hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(known)}"
        raise ConfigError(f"unknown kind of products {name!r}: {hint}")
    return Choice(name, {})


def measure(kind: LinearKind, config: ModelConfig) -> tuple[float, ...]:
    """Seconds that the products of one layer take, for each of ROWS.

    On one thread: several wait for each other, and for whatever else the machine does just then.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.inference_mode():
            products = [(kind(w, None, torch.float32, None), w.shape[1]) for w in _weights(config)]
            return tuple(_quickest(products, rows) for rows in ROWS)
    finally:
        torch.set_num_threads(threads)


def _weights(config: ModelConfig) -> list[Tensor]:
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    shapes = [
        (queries + 2 * keys, config.width),
        (config.width, queries),
        (2 * config.mlp_width, config.width),
        (config.width, config.mlp_width),
    ]
    return [torch.linspace(-1, 1, prod(shape)).view(shape) for shape in shapes]


def _quickest(products: list[tuple[Linear, int]], rows: int) -> float:
    inputs = [torch.ones(rows, width) for _, width in products]
    times: list[float] = []
    for _ in range(TRIES):
        begin = perf_counter()
        for (product, _), x in zip(products, inputs, strict=True):
            product(x)
        times.append(perf_counter() - begin)
    return min(times)
