"""Chooses the kind of product that a model is built of: by name, or by a short measurement."""

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from math import prod
from time import perf_counter

import torch
from torch import Tensor

from paceline.core.errors import ConfigError
from paceline.runner.layers.linear import DenseLinear, Linear, LinearKind
from paceline.runner.layers.native import NativeLinear
from paceline.runner.layers.native_stack import NATIVE
from paceline.runner.models.architecture import DecoderSpec, ProductSpec, parts_of
from paceline.runner.models.config import ModelConfig
from paceline.runner.models.describe import describe
from paceline.runner.native.library import is_available

# "int8" keeps weights of which 4 bits lose nothing in 4 bits. These are faster than weights of
# 8 bits, which are the ones that are measured.
KINDS: Mapping[str, LinearKind] = {"float32": DenseLinear, "int8": NativeLinear}
AUTO = "auto"
ROWS = (1, 8, 32, 512)  # one stream, some, many, and a chunk of a prompt
TRIES = 4


@dataclass(frozen=True, slots=True)
class LinearChoice:
    """A kind of product, and the measurements that chose it: none if it was named."""

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
        return f"{self.name} ({reason if self.measured_s else 'as requested'})"


def choose(name: str, config: ModelConfig) -> LinearChoice:
    """The kind with this name; for "auto", the fastest one on the shapes of the model."""
    if name == AUTO:
        spec = describe(config)
        is_native = NATIVE.supports(spec) is None and is_available()
        names = [known for known, kind in KINDS.items() if kind is not NativeLinear or is_native]
        measured = {known: measure(KINDS[known], spec) for known in names}
        # The product of the times gives every number of rows the same weight.
        return LinearChoice(min(measured, key=lambda known: prod(measured[known])), measured)
    if name not in KINDS:
        known = [AUTO, *KINDS]
        close = get_close_matches(name, known, 1, cutoff=0.3)
        hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(known)}"
        raise ConfigError(f"unknown kind of weights {name!r}: {hint}")
    return LinearChoice(name, {})


def measure(kind: LinearKind, spec: DecoderSpec) -> tuple[float, ...]:
    """Seconds that the products of one layer take, for each of ROWS.

    It uses one thread: several threads wait for each other and for other work on the machine.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.inference_mode():
            products = [(kind(w, None, torch.float32, None), w.shape[1]) for w in _weights(spec)]
            return tuple(_quickest(products, rows) for rows in ROWS)
    finally:
        torch.set_num_threads(threads)


def _weights(spec: DecoderSpec) -> list[Tensor]:
    """Weights of the shapes that one layer has."""
    products = parts_of(spec.layers[0], ProductSpec)
    shapes = [(product.outputs, product.inputs) for product in products]
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
