"""Reads single tensors of a folder in HF's layout as float32, without torch: the small ones that
turn the vector of a text into an embedding or into scores."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from paceline.core.arrays import F32
from paceline.core.errors import ConfigError
from paceline.core.json_file import json_object

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
WIDTHS = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2")}
LENGTH = 8  # bytes that say how long the header of a file is


def stored_tensor(folder: Path, names: tuple[str, ...], rows: tuple[int, ...] = ()) -> F32:
    """The first of several tensors that is there; with `rows`, these rows of it alone."""
    for name in names:
        if (file := file_of(folder, name)) is None:
            continue
        header, begin = header_of(file)
        if (found := header.get(name)) is not None:
            return values_of(file, begin, found, rows)
    raise ConfigError(f"{folder} has no tensor {' or '.join(names)}")


def file_of(folder: Path, name: str) -> Path | None:
    """The file that has a tensor, or may have it."""
    index = folder / INDEX
    if not index.is_file():
        return folder / SINGLE if (folder / SINGLE).is_file() else None
    found = json_object(index).get("weight_map", {}).get(name)
    return folder / found if isinstance(found, str) else None


def header_of(file: Path) -> tuple[dict[str, Any], int]:
    """What a file says of its tensors, and where their bytes begin."""
    try:
        with file.open("rb") as opened:
            size = int.from_bytes(opened.read(LENGTH), "little")
            return json.loads(opened.read(min(size, file.stat().st_size))), LENGTH + size
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from None


def values_of(file: Path, begin: int, entry: dict[str, Any], rows: tuple[int, ...]) -> F32:
    shape, kind = entry["shape"], entry["dtype"]
    if kind not in WIDTHS:
        raise ConfigError(f"{file}: a tensor has type {kind}; supported are {', '.join(WIDTHS)}")
    offset = begin + entry["data_offsets"][0]
    try:
        whole = np.memmap(file, WIDTHS[kind], "r", offset, tuple(shape))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file} is incomplete: {error}") from None
    raw = np.array(whole[list(rows)] if rows else whole)
    if kind == "BF16":
        return (raw.astype(np.uint32) << 16).view(np.float32)
    return raw.astype(np.float32)
