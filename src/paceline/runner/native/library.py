"""Loads the C kernels: those of the wheel, or else compiled for this processor, once."""

import ctypes
import logging
from collections.abc import Iterator
from ctypes import POINTER, Structure, c_float, c_int, c_int64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

from paceline.core.errors import ConfigError
from paceline.core.system.files import cache_folder, found, stored
from paceline.runner.native import build

log = logging.getLogger(__name__)


class MatrixStruct(Structure):
    """`struct matrix` of linear.h."""

    _fields_ = [
        *((name, c_void_p) for name in ("packed", "scale", "bias", "factor", "table", "order")),
        *((name, c_int64) for name in ("inputs", "width", "outputs", "bits")),
    ]


class StepStruct(Structure):
    """`struct step` of attention.h."""

    _fields_ = [
        *((name, c_void_p) for name in ("tiles", "position", "end", "cell", "table")),
        *((name, c_void_p) for name in ("group", "layer_index", "content")),
        *((name, c_int64) for name in ("positions", "tile_count", "rows", "table_width")),
        *((name, c_int64) for name in ("layers_per_block", "block_size", "vectors", "kv_heads")),
        ("head_dim", c_int64),
    ]


class ExpertStruct(Structure):
    """`struct expert` of decoder.c."""

    _fields_ = [(name, POINTER(MatrixStruct)) for name in ("gate_up", "down")]


class MoEStruct(Structure):
    """`struct moe` of decoder.c."""

    _fields_ = [
        ("router", c_void_p),
        ("experts", POINTER(ExpertStruct)),
        *((name, c_int64) for name in ("count", "chosen", "shares_sum_to_one")),
    ]


class LayerStruct(Structure):
    """`struct layer` of decoder.c."""

    _fields_ = [
        *((name, POINTER(MatrixStruct)) for name in ("qkv", "out", "gate_up", "down")),
        ("moe", POINTER(MoEStruct)),
        *((name, c_void_p) for name in ("heads", "after_attention", "after_mlp", "rope")),
        *((name, c_int64) for name in ("mlp_width", "window")),
    ]


class DecoderStruct(Structure):
    """`struct decoder` of decoder.c."""

    _fields_ = [
        ("layers", POINTER(LayerStruct)),
        *((name, c_int64) for name in ("first", "count", "width", "heads")),
        *((name, c_int64) for name in ("kv_heads", "head_dim", "is_gelu")),
        *((name, c_float) for name in ("norm_eps", "query_scale", "score_cap")),
    ]


# By name: result and arguments.
SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "bytes_panel": (c_int, []),
    "bytes_depth": (c_int, []),
    "float_panel": (c_int, []),
    "int4_lanes": (c_int, []),
    "int4_group": (c_int, []),
    "int4_table_most": (c_int, []),
    "linear_scratch_bytes": (c_int64, [POINTER(MatrixStruct), c_int64]),
    "linear": (
        None,
        [
            POINTER(MatrixStruct),
            c_void_p,
            c_int64,
            c_int64,
            c_void_p,
            c_int64,
            c_int,
            c_void_p,
            c_int,
        ],
    ),
    "attention_tile": (c_int, []),
    "attend": (
        None,
        [
            POINTER(StepStruct),
            *[c_int64] * 2,
            *[c_float] * 2,
            *[c_void_p] * 2,
            *[c_int64] * 2,
            c_void_p,
            c_int,
        ],
    ),
    "decoder_scratch_bytes": (c_int64, [POINTER(DecoderStruct), c_int64]),
    "decode": (
        None,
        [
            POINTER(DecoderStruct),
            POINTER(StepStruct),
            *[c_void_p] * 2,
            c_int64,
            *[c_void_p] * 2,
            c_int,
        ],
    ),
    "memory_release": (c_int, [c_int]),
    "memory_restore": (c_int, [c_int]),
    "memory_segments": (c_int, [c_int, POINTER(c_int64), POINTER(c_int64), c_int]),
    "mask_logits": (None, [c_void_p, c_int64, *[c_void_p] * 2, *[c_int64] * 2, c_int]),
}


@cache
def library() -> ctypes.CDLL:
    """Load the kernels. Raise a ConfigError with the reason if that fails."""
    reason = ""
    try:
        for path in files():
            try:
                return loaded(path)
            except (OSError, AttributeError) as error:  # damaged, or for another system
                reason = str(error)
                log.info("the kernels in %s cannot be loaded: %s", path, reason)
    except build.CannotCompile as error:
        raise ConfigError(str(error)) from None
    except OSError as error:
        raise ConfigError(f"the native kernels cannot be stored: {error}") from None
    raise ConfigError(f"the native kernels cannot be loaded: {reason}")


def files() -> Iterator[Path]:
    """Paths of kernels to try: prebuilt ones first, then compiled ones."""
    if (level := build.best_level()) is not None:
        prebuilt = build.FOLDER / build.PREBUILT / build.prebuilt_name(level)
        if prebuilt.exists():
            yield prebuilt
    compiler = build.Compiler.found()
    path = Path("native") / f"{compiler.digest}.so"
    if there := found(path):
        yield there
    log.info("compiling the C kernels, once: they are kept in %s", cache_folder() / path.parent)
    yield stored(path, compiler.compile)


def loaded(path: Path) -> ctypes.CDLL:
    kernels = ctypes.CDLL(str(path))
    for name, (result, arguments) in SIGNATURES.items():
        function = getattr(kernels, name)
        function.restype, function.argtypes = result, arguments
    return kernels


def is_available() -> bool:
    try:
        library()
    except ConfigError as error:
        _warn(str(error))
        return False
    return True


@cache
def _warn(reason: str) -> None:
    log.warning("slower kernels are used: %s", reason)
