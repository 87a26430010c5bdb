"""Cache packed weights on disk, so that they are packed only at the first start."""

import errno
import json
import logging
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from os import utime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file  # pyright: ignore[reportUnknownVariableType]
from torch import Tensor

from paceline.core.system.files import cache_folder, packed_folder, places, stored
from paceline.runner.layers.packing import PackedWeights
from paceline.runner.native.library import library
from paceline.runner.weights.matrix import Matrix

log = logging.getLogger(__name__)

VERSION = 2  # of the file format; rises when packing changes
PARTS = "content", "scale", "table", "order"  # tensors of packed weights
PRODUCTS = "products"  # metadata entry that describes the linears


@dataclass(frozen=True, slots=True)
class CacheLimits:
    """Limits of the cache.

    least_bytes  smallest model to cache: smaller ones are packed quickly
    most_bytes   of all models together
    spare_bytes  to leave free on the disk
    """

    least_bytes: int = 16 << 20
    most_bytes: int = 32 << 30
    spare_bytes: int = 1 << 30


class PackedCache:
    """The packed weights of one model, by linear.

    They are mapped from a file if it matches the current model files and its checksums are right.
    Otherwise they are packed, and `save` writes them.

        packed / digest of the path / layout - digest of size and time .safetensors

    The layout of packed weights depends on the processor. Files of an earlier state of the model
    are deleted, and the least recently used ones if there is no room.
    """

    def __init__(
        self, files: Sequence[Path], limits: CacheLimits | None = None, quantization: str = "auto"
    ) -> None:
        self._limits = limits or CacheLimits()
        state = state_of(files, quantization)
        self._path = packed_folder(files[0]) / f"{layout()}-{state}.safetensors"
        self._packed: dict[str, PackedWeights] = {}
        self._is_new = False
        for path in places(self._path):
            if not self._packed and path.is_file():
                self._packed = read(path)

    def packed(self, name: str, weight: Callable[[], Matrix]) -> PackedWeights:
        """The weights of a linear; `weight` reads them if they are not in the cache."""
        if name not in self._packed:
            if not self._is_new:
                log.info(
                    "packing weights for this processor, once: the next start finds them in %s",
                    cache_folder() / self._path.parent,
                )
            self._is_new = True
            self._packed[name] = PackedWeights.of(weight())
        return self._packed[name]

    def save(self) -> None:
        """Write newly packed weights. If that fails, the next start packs again."""
        size = sum(part.nbytes for one in self._packed.values() for part in parts(one).values())
        if not self._is_new or not self._limits.least_bytes <= size <= self._limits.most_bytes:
            return

        def write_to(path: Path) -> None:
            if shutil.disk_usage(path.parent).free < size + self._limits.spare_bytes:
                raise OSError(errno.ENOSPC, "the disk is almost full")
            write(path, self._packed)

        try:
            target = stored(self._path, write_to)
        except (OSError, SafetensorError) as error:
            log.info("the packed weights are not cached: %s", error)
        else:
            delete_old(target, self._limits.most_bytes)


def layout() -> str:
    """A name of the layout of packed weights on this processor."""
    kernels = library()
    sizes = (kernels.bytes_panel(), kernels.bytes_depth(), kernels.int4_lanes())
    return "-".join(map(str, (f"v{VERSION}", *sizes, kernels.int4_group())))


def state_of(files: Sequence[Path], quantization: str) -> str:
    """A digest of the sizes and times of a model's files, and of the format to which they are
    quantized on load."""
    states = [
        (str(file.absolute()), file.stat().st_size, file.stat().st_mtime_ns) for file in files
    ]
    return sha256(json.dumps([quantization, states]).encode()).hexdigest()[:16]


def write(path: Path, packed: dict[str, PackedWeights]) -> None:
    tensors: dict[str, Tensor] = {}
    linears: dict[str, list[int]] = {}
    for name, one in packed.items():
        tensors |= {f"{name}.{part}": tensor for part, tensor in parts(one).items()}
        linears[name] = [one.bits, one.outputs, one.inputs, one.width, checksum(one)]
    save_file(tensors, path, {PRODUCTS: json.dumps(linears)})


def read(path: Path) -> dict[str, PackedWeights]:
    """Map the weights of a file; empty if it is damaged."""
    found: dict[str, PackedWeights] = {}
    try:
        opened: Any = safe_open(path, framework="pt")
        with opened as file:
            stored = set(file.keys())
            for name, values in json.loads(file.metadata()[PRODUCTS]).items():
                bits, outputs, inputs, width, expected = values
                kept: dict[str, Tensor] = {
                    part: file.get_tensor(f"{name}.{part}")
                    for part in PARTS
                    if f"{name}.{part}" in stored
                }
                found[name] = PackedWeights(
                    bits=bits, outputs=outputs, inputs=inputs, width=width, **kept
                )
                if checksum(found[name]) != expected:
                    raise ValueError(f"{name} has changed")
    except (OSError, SafetensorError, ValueError, TypeError, KeyError) as error:
        log.info("the packed weights in %s are damaged, and packed again: %s", path, error)
        return {}
    with suppress(OSError):  # it may be read-only
        utime(path)  # marks it as recently used
    return found


def parts(packed: PackedWeights) -> dict[str, Tensor]:
    """Its tensors by name."""
    found = ((name, getattr(packed, name)) for name in PARTS)
    return {name: tensor for name, tensor in found if tensor is not None}


def checksum(packed: PackedWeights) -> int:
    """The sum of 64-bit words."""
    total = 0
    for tensor in parts(packed).values():
        content = tensor.flatten().view(torch.uint8).numpy()
        words = content[: len(content) // 8 * 8].view(np.uint64)
        total += int(words.sum(dtype=np.uint64)) + int(content[len(words) * 8 :].sum())
    return total


def delete_old(target: Path, most_bytes: int) -> None:
    """Delete files of earlier states of the model, then the least recently used beyond a size."""
    for file in target.parent.glob(f"{layout()}-*.safetensors"):
        if file != target:
            file.unlink(missing_ok=True)  # another process may have deleted it
    used: list[tuple[float, int, Path]] = []
    for file in target.parents[1].glob("*/*.safetensors"):
        with suppress(OSError):
            used.append((file.stat().st_mtime, file.stat().st_size, file))
    total = 0
    for _, size, file in sorted(used, reverse=True):  # most recently used first
        total += size
        if total > most_bytes and file != target:
            file.unlink(missing_ok=True)
