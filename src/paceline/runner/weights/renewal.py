"""Put other weights in place of those of a model, whose tensors keep their addresses.

CUDA graphs, C structs and tensor maps point into the tensors of a model. So a part of the model is
built once more from the new weights, by the code that built it first, and its tensors are copied
over those in use.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import Enum
from functools import partial
from types import FunctionType, MethodType
from typing import Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor

from paceline.core.errors import ConfigError, WeightsLost
from paceline.runner.models.architecture import DecoderSpec
from paceline.runner.weights.checkpoint import Checkpoint

SCALARS = (bool, int, float, str, bytes, type(None), Enum, torch.dtype)
HOME = "paceline.runner."


class AddressHolder:
    """A base of classes that have addresses of tensors instead of tensors: these stay."""


class Lazy(ABC):
    """A base of classes that build more at their first use."""

    @abstractmethod
    def complete_like(self, other: Any) -> None:
        """Build what another object of this class has built."""


@dataclass(frozen=True, slots=True, eq=False)
class Blueprint:
    """How a model was built: a factory of layers, and the description of the model. The files of
    its weights need not stay open."""

    factory: Any  # LayerFactory, which imports this module
    spec: DecoderSpec

    def __post_init__(self) -> None:
        object.__setattr__(self, "factory", replace(self.factory, checkpoint=None))

    def of(self, checkpoint: Checkpoint | None) -> Any:
        """The factory for another checkpoint."""
        return replace(self.factory, checkpoint=checkpoint)


@dataclass(frozen=True, slots=True, eq=False)
class WeightPart:
    """A part of a model, as it is and as it is built of other weights.

    shared   values of the model that the part uses and that no weights replace, such as tables
    """

    name: str
    present: Any
    build: Callable[[], Any]
    shared: Any = ()


class Renewable(Protocol):
    """A model whose weights can be replaced."""

    def weight_parts(self, checkpoint: Checkpoint | None) -> Iterator[WeightPart]:
        """All parts that have weights, to be built of those of a checkpoint if one is given."""
        ...

    def renewed(self, checkpoint: Checkpoint) -> None:
        """The weights of a checkpoint are in place: read from it what is read later."""
        ...


class Pair(NamedTuple):
    """A tensor in use, and its new content."""

    present: Tensor
    new: Tensor


def contents(value: Any) -> Iterator[tuple[str, Any]]:
    """The values that make up an object, by name; nothing of objects of other packages."""
    if isinstance(value, Mapping):
        yield from contents([*cast("Mapping[Any, Any]", value).values()])
    elif isinstance(value, list | tuple):
        listed = cast("Sequence[Any]", value)
        yield from ((str(index), one) for index, one in enumerate(listed))
    elif isinstance(value, partial):
        yield from contents(value.args)
        yield from contents(value.keywords)
        yield "func", value.func
    elif isinstance(value, MethodType):
        yield "self", value.__self__
    elif isinstance(value, FunctionType):
        yield from ((str(at), one.cell_contents) for at, one in enumerate(value.__closure__ or ()))
    elif type(value).__module__.startswith(HOME) and not isinstance(value, type):
        yield from getattr(value, "__dict__", {}).items()
        if is_dataclass(value):
            slots = [one.name for one in fields(value) if one.name not in vars_of(value)]
            yield from ((name, getattr(value, name)) for name in slots)


def vars_of(value: Any) -> Mapping[str, Any]:
    return getattr(value, "__dict__", {})


class TensorPairs:
    """Pairs the tensors of two objects that were built alike."""

    def __init__(self) -> None:
        self.pairs: list[Pair] = []
        self._seen: set[int] = set()

    def compare(self, present: Any, new: Any, path: str) -> None:
        """ConfigError where they differ in anything but the content of tensors."""
        if isinstance(present, SCALARS) or isinstance(new, SCALARS):
            if present is not new and present != new:
                raise changed(path, repr(present), repr(new))
            return
        if present is new or id(present) in self._seen:
            return
        self._seen.add(id(present))
        if isinstance(present, Tensor) and isinstance(new, Tensor):
            if (present.shape, present.dtype) != (new.shape, new.dtype):
                raise changed(path, description(present), description(new))
            self.pairs.append(Pair(present, new))
        elif type(present) is not type(new):
            raise changed(path, type(present).__name__, type(new).__name__)
        elif not isinstance(present, AddressHolder):
            self._compare_contents(present, new, path)

    def _compare_contents(self, present: Any, new: Any, path: str) -> None:
        if isinstance(new, Lazy):
            new.complete_like(present)
        ours, theirs = dict(contents(present)), dict(contents(new))
        if ours.keys() != theirs.keys():
            raise changed(path, f"{len(ours)} values", f"{len(theirs)} values")
        for name, one in ours.items():
            self.compare(one, theirs[name], f"{path}.{name}")


def pairs(part: WeightPart) -> list[Pair]:
    """The tensors of a part, and their new content."""
    found = TensorPairs()
    found.compare(part.present, part.build(), part.name)
    return found.pairs


def description(tensor: Tensor) -> str:
    return f"{list(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"


def changed(path: str, present: str, new: str) -> ConfigError:
    return ConfigError(
        f"the new weights cannot take the place of those in use: {path} is {present:.80} and would "
        f"be {new:.80}; start the engine with them instead"
    )


def tensors_of(value: Any) -> Iterator[Tensor]:
    """All tensors that make up an object, once each."""
    seen: set[int] = set()
    open_values = [value]
    while open_values:
        one = open_values.pop()
        if id(one) in seen or isinstance(one, SCALARS):
            continue
        seen.add(id(one))
        if isinstance(one, Tensor):
            yield one
        else:
            open_values += [inner for _, inner in contents(one)]


def weights_of(model: Renewable) -> Iterator[Tensor]:
    """All tensors that new weights replace."""
    for part in model.weight_parts(None):
        shared = {id(one) for one in tensors_of(part.shared)}
        yield from (one for one in tensors_of(part.present) if id(one) not in shared)


def lasting_tensors(model: Renewable) -> Iterator[Tensor]:
    """All other tensors of a model: tables, and room for images."""
    replaced = {one.data_ptr(): one for one in weights_of(model)}
    for one in tensors_of(model):
        weight = replaced.get(one.data_ptr())
        if weight is None:
            yield one
        elif weight.nbytes < one.nbytes:  # images have rows behind the embeddings of tokens
            yield one[len(weight) :]


def weight_bytes(model: Renewable) -> int:
    """Bytes of all weights of a model."""
    return sum(one.nbytes for one in weights_of(model))


@torch.inference_mode()
def renew(model: Renewable, checkpoint: Checkpoint, has_room: bool) -> None:
    """Replace the weights of a model by those of a checkpoint that was verified.

    With room for both, all parts are built before the first one is replaced. Otherwise each part is
    built twice, first to compare it. ConfigError if they do not fit; the weights in use stay then.
    WeightsLost if it fails in between.
    """
    staged: list[Pair] = []
    for part in model.weight_parts(checkpoint):
        found = pairs(part)
        staged += found if has_room else ()
        del found
    try:
        if has_room:
            copy_all(staged)
        else:
            for part in model.weight_parts(checkpoint):
                copy_all(pairs(part))
        model.renewed(checkpoint)
    except Exception as error:  # memory, or files that changed meanwhile
        raise WeightsLost(f"the weights were replaced in part: {error}") from error


def copy_all(found: list[Pair]) -> None:
    for present, new in found:
        present.copy_(new)
    if found and found[0].present.is_cuda:
        torch.cuda.synchronize(found[0].present.device)
