"""The weights of one adapter, from PEFT's files to the form in which linears use them."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from paceline.core.errors import RequestError, some
from paceline.runner.adapters.targets import (
    ALL_LINEAR,
    NAME,
    AdapterTargets,
    ModuleTarget,
    PeftConfig,
    Site,
)

FILE = "adapter_model.safetensors"
OTHER_FILE = "adapter_model.bin"
TENSOR = re.compile(r"(?:base_model\.model\.)?(.+)\.lora_(A|B)(?:\.[^.]+)?\.weight")
VERSION_BYTES = 8


@dataclass(frozen=True, slots=True, eq=False)
class PartWeights:
    """What an adapter adds to outputs first:end of a linear: (x @ a) @ b."""

    first: int
    end: int
    a: Tensor  # [inputs, rank]
    b: Tensor  # [rank, outputs]


@dataclass(frozen=True, slots=True, eq=False)
class AdapterWeights:
    """An adapter on the host. Equal versions have equal content."""

    version: str
    rank: int  # the largest
    sites: dict[Site, tuple[PartWeights, ...]]


def read_adapter(folder: Path, targets: AdapterTargets, most_rank: int) -> AdapterWeights:
    """RequestError says what is wrong with the files."""
    config = PeftConfig.read(folder)
    path = folder / FILE
    if not path.is_file():
        also = f"; convert {OTHER_FILE} to safetensors" if (folder / OTHER_FILE).exists() else ""
        raise RequestError(f"{folder} has no {FILE}{also}")
    try:
        opened: Any = safe_open(path, framework="pt")
        with opened as file:
            return AdapterReader(config, targets, most_rank, file).read(version(folder))
    except (OSError, SafetensorError) as error:
        raise RequestError(f"{path} cannot be read: {error}") from None


def version(folder: Path) -> str:
    """A digest of all that an adapter computes."""
    digest = blake2b(digest_size=VERSION_BYTES)
    for name in (NAME, FILE):
        with (folder / name).open("rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
        digest.update(name.encode())
    return digest.hexdigest()


class AdapterReader:
    """Reads one adapter."""

    def __init__(
        self, config: PeftConfig, targets: AdapterTargets, most_rank: int, file: Any
    ) -> None:
        self._config, self._targets, self._most_rank = config, targets, most_rank
        self._path, self._file = config.path.parent / FILE, file
        self._names = self._found()

    def _found(self) -> dict[str, dict[str, str]]:
        """The names of A and B, by module."""
        found: dict[str, dict[str, str]] = {}
        for name in self._file.keys():  # noqa: SIM118 - it is no mapping
            match = TENSOR.fullmatch(name)
            if match is None:
                raise RequestError(f"{self._path}: tensor {name!r} is not one of a LoRA adapter")
            found.setdefault(match[1], {})[match[2]] = name
        if not found:
            raise RequestError(f"{self._path} has no tensors")
        return found

    def read(self, version: str) -> AdapterWeights:
        self._check_modules()
        parts: dict[Site, list[PartWeights]] = {}
        rank = 0
        for module in sorted(self._names, key=lambda name: self._targets.modules[name].first):
            part = self._part(module, self._targets.modules[module])
            parts.setdefault(self._targets.modules[module].site, []).append(part)
            rank = max(rank, part.a.shape[1])
        return AdapterWeights(version, rank, {site: tuple(own) for site, own in parts.items()})

    def _check_modules(self) -> None:
        """The file has weights for exactly the modules that the configuration names."""
        known, config = self._targets.modules, self._config
        if unknown := [name for name in self._names if name not in known]:
            raise RequestError(
                f"{self._path} adapts {some(unknown)}, which this model does not have or cannot "
                f"adapt; it can adapt {', '.join(ends(known))}"
            )
        if foreign := [name for name in self._names if not config.adapts(name)]:
            raise RequestError(
                f"{self._path} adapts {some(foreign)}, which target_modules of {NAME} does not name"
            )
        missing = [name for name in known if config.adapts(name) and name not in self._names]
        if missing and config.targets != ALL_LINEAR:
            raise RequestError(
                f"{self._path} has no weights for {some(missing)}, which target_modules of {NAME} "
                "names"
            )

    def _part(self, module: str, target: ModuleTarget) -> PartWeights:
        rank, names = self._config.rank_of(module), self._names[module]
        if rank > self._most_rank:
            raise RequestError(
                f"{self._path}: the rank of {module} is {rank}; max_lora_rank is {self._most_rank}"
            )
        outputs, inputs = target.shape
        a = self._tensor(module, names.get("A"), (rank, inputs))
        b = self._tensor(module, names.get("B"), (outputs, rank))
        a, b = target.own_part(a, b)
        if target.factor is not None:
            a = a * target.factor
        if target.order is not None:
            b = b[target.order]
        b = b * (self._config.scale_of(module) * target.scale)
        kept = [one.t().to(self._targets.dtype).contiguous() for one in (a, b)]
        if not all(one.isfinite().all() for one in kept):
            raise RequestError(
                f"{self._path}: the weights of {module} are infinite or not numbers as "
                f"{self._targets.dtype}; train the adapter again"
            )
        return PartWeights(target.first, target.first + target.outputs, *kept)

    def _tensor(self, module: str, name: str | None, shape: tuple[int, int]) -> Tensor:
        if name is None:
            raise RequestError(f"{self._path} has only one of lora_A and lora_B of {module}")
        tensor: Tensor = self._file.get_tensor(name)
        if tuple(tensor.shape) != shape:
            raise RequestError(
                f"{self._path}: tensor {name!r} has shape {list(tensor.shape)}; this model and "
                f"{NAME} need {list(shape)}"
            )
        return tensor.to(torch.float32)


def ends(modules: Iterable[str]) -> list[str]:
    """The names of modules within a layer."""
    return list(dict.fromkeys(re.sub(r".*\.\d+\.", "", name) for name in modules))
