"""Groups of layers with one block table, and what a backend supports of a model."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from itertools import repeat
from typing import Any, TypeGuard

from paceline.core.errors import ConfigError
from paceline.runner.models.architecture import DecoderSpec, LayerSpec, attentions
from paceline.runner.models.config import NO_ATTENTION
from paceline.runner.models.linear_spec import EVERY_BACKEND, OPTIONAL
from paceline.runner.models.tensor_spec import TensorSpec

Values = Callable[[LayerSpec], Iterable[object]]


@dataclass(frozen=True, slots=True)
class BackendSupport:
    """Features that a backend implements beyond the plain decoder.

    backend     its name, for messages
    features    names of the features that it implements: see `features_of`
    one_value   quantities that it takes once for all layers, by name: how to read them from a layer
    instead     what a user can do when the backend cannot compute a model
    """

    backend: str
    features: frozenset[str]
    one_value: Mapping[str, Values] = field(default_factory=dict[str, Values], hash=False)
    instead: str = ""

    def supports(self, spec: DecoderSpec) -> str | None:
        """Why the backend cannot compute a model; None if it can."""
        if missing := sorted(set(features_of(spec)) - self.features):
            return f"it does not implement {', '.join(missing)}"
        for name, read in self.one_value.items():
            found = list(dict.fromkeys(value for layer in spec.layers for value in read(layer)))
            if len(found) > 1:
                return f"it takes one {name} for all layers, and the model has {found}"
        return None

    def require(self, spec: DecoderSpec) -> None:
        """Raise a ConfigError if the backend cannot compute a model."""
        if reason := self.supports(spec):
            advice = f"; {self.instead}" if self.instead else ""
            raise ConfigError(
                f"the {self.backend} backend cannot compute {spec.architecture!r}: {reason}{advice}"
            )


# What a store with one shape for all layers takes once.
STORED: dict[str, Values] = {
    "number of heads of keys": lambda layer: [one.kv_heads for one in attentions(layer)],
    "size of heads": lambda layer: [one.head_dim for one in attentions(layer)],
}


def features_of(spec: DecoderSpec) -> frozenset[str]:
    """Names of the features that a model has: fields whose values are not their defaults.

    The name is the path of the field, such as `layers.attention.window`. Where the value is one
    of several names, it is part of the feature: `layers.mlp.activation=gelu_pytorch_tanh`. A part
    of another kind than the plain decoder has names its FEATURE: `layers.mlp=moe`. One that the
    plain decoder has and the model lacks is `layers.mlp.norm=none`.
    """
    return frozenset(_features(spec, ""))


def is_tuple(part: object) -> TypeGuard[tuple[Any, ...]]:
    return isinstance(part, tuple)


def _features(part: Any, path: str) -> Iterator[str]:
    if is_tuple(part):
        for one in part:
            yield from _features(one, path)
    if not is_dataclass(part) or isinstance(part, TensorSpec):
        return
    if kind := getattr(part, "FEATURE", None):
        yield f"{path}={kind}"
    for one in fields(part):
        if EVERY_BACKEND in one.metadata:
            continue
        value, name = getattr(part, one.name), f"{path}.{one.name}".lstrip(".")
        if OPTIONAL in one.metadata and value is None:
            yield f"{name}=none"
        elif one.default is not MISSING and value != one.default:
            yield f"{name}={value}" if isinstance(value, str) else name
        yield from _features(value, name)


SPREAD = 1.25  # windows whose numbers of layers differ by less have one group each

Window = int | None  # positions that a position reads, itself included; None: all


@dataclass(frozen=True, slots=True)
class LayerGroups:
    """The block table that each layer reads, and its index within a block.

        layer     0   1   2   3   4   5   6   7        2 and 5 see everything, the others a window
        window    w   w   .   w   w   .   w   w
        group     1   2   0   3   1   0   2   3        group 0 has all that see everything
        index     0   0   0   0   1   1   1   1        blocks of all groups hold two layers

    windows            [groups]; what all layers of a group read
    group              [layers]
    index              [layers]
    layers_per_block   room of a block; a group may have fewer layers
    """

    windows: tuple[Window, ...]
    group: tuple[int, ...]
    index: tuple[int, ...]
    layers_per_block: int

    def __len__(self) -> int:
        return len(self.windows)

    def with_readers(self, reads: Sequence[int | None]) -> "LayerGroups":
        """The same with layers that read what an earlier one keeps, and keep nothing. `reads` names
        that one for each layer; None: it is one of these."""
        own = iter(zip(self.group, self.index, strict=True))
        found: list[tuple[int, int]] = []
        for read in reads:
            found.append(next(own) if read is None else found[read])
        group, index = zip(*found, strict=True)
        return replace(self, group=group, index=index)


def one_group(windows: Sequence[Window]) -> LayerGroups:
    """All layers with attention in one group that keeps every position, whatever their windows."""
    return layer_groups([one if one == NO_ATTENTION else None for one in windows])


def layer_groups(windows: Sequence[Window]) -> LayerGroups:
    """Divide layers that read the same into groups of one size, so that blocks of all groups have
    the same size and share one pool.

    The size is the smallest number of layers of a window, or the largest if they hardly differ:
    then each window is one group. Groups of fewer layers leave a part of their blocks empty.
    Layers without attention have no room in blocks, and what is said of them has no meaning.
    """
    kinds: list[Window] = sorted(set(windows) - {NO_ATTENTION}, key=_order)
    by_window: dict[Window, list[int]] = {
        kind: [layer for layer, one in enumerate(windows) if one == kind] for kind in kinds
    }
    counts = [len(layers) for layers in by_window.values()]
    least, most = min(counts), max(counts)
    size = most if most < SPREAD * least else least
    found: list[Window] = []
    group, index = [0] * len(windows), [0] * len(windows)
    for kind, layers in by_window.items():
        number = -(-len(layers) // size)
        for at, layer in enumerate(layers):
            group[layer], index[layer] = len(found) + at % number, at // number
        found.extend(repeat(kind, number))
    return LayerGroups(tuple(found), tuple(group), tuple(index), max(index) + 1)


def _order(window: Window) -> tuple[int, int]:
    """Full attention first, then windows, the shortest first."""
    return (0, 0) if window is None else (1, window)
