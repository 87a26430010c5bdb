"""Which models a backend can compute: compared with the description when a model is loaded."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from typing import Any

from paceline.core.errors import ConfigError
from paceline.runner.models.architecture import DecoderSpec, LayerSpec
from paceline.runner.models.tensor_spec import TensorSpec

Values = Callable[[LayerSpec], Iterable[object]]


@dataclass(frozen=True, slots=True)
class BackendSupport:
    """What a backend implements beyond the plain decoder.

    backend     its name, for messages
    features    names of the features that it implements: see `features_of`
    one_value   quantities that it takes once for all layers, by name: how to read them from a layer
    instead     what a user can do when the backend cannot compute a model
    """

    backend: str
    features: frozenset[str]
    one_value: Mapping[str, Values] = field(default_factory=dict[str, Values])
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


def features_of(spec: DecoderSpec) -> frozenset[str]:
    """Names of the features that a model has: fields whose values are not their defaults.

    The name is the path of the field, such as `layers.attention.window`. Where the value is one
    of several names, it is part of the feature: `layers.mlp.activation=gelu_pytorch_tanh`. A part
    of another kind than the plain decoder has names its FEATURE: `layers.mlp=mixture`.
    """
    return frozenset(_features(spec, ""))


def _features(part: Any, path: str) -> Iterator[str]:
    if isinstance(part, tuple):
        for item in part:
            yield from _features(item, path)
    if not is_dataclass(part) or isinstance(part, TensorSpec):
        return
    if kind := getattr(part, "FEATURE", None):
        yield f"{path}={kind}"
    for one in fields(part):
        value, name = getattr(part, one.name), f"{path}.{one.name}".lstrip(".")
        if one.default is not MISSING and value != one.default:
            yield f"{name}={value}" if isinstance(value, str) else name
        yield from _features(value, name)
