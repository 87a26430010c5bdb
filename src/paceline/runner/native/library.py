"""Compiles the C kernels for this processor, once, and loads them."""

import ctypes
import logging
import os
import shutil
import subprocess
from ctypes import POINTER, Structure, c_float, c_int, c_int64, c_void_p
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from paceline.core.errors import ConfigError
from paceline.core.folders import cache_folder, placed

log = logging.getLogger(__name__)

NAMES = ("threads.c", "linear.c", "bytes.c", "nibbles.c", "attention.c", "decoder.c")
SOURCES = [Path(__file__).with_name(name) for name in NAMES]
HEADERS = sorted(Path(__file__).parent.glob("*.h"))
FLAGS = ["-O3", "-march=native", "-pthread", "-fno-math-errno", "-fno-trapping-math"]
# On some processors gcc fuses a sum only beside others, which gives other bits.
GCC_FLAGS = ["--param=avoid-fma-max-bits=0"]


class MatrixStruct(Structure):
    """`struct matrix` of linear.h."""

    _fields_ = [
        *((name, c_void_p) for name in ("packed", "scale", "bias", "factor")),
        *((name, c_int64) for name in ("inputs", "width", "outputs", "bits")),
    ]


class StepStruct(Structure):
    """`struct step` of attention.h."""

    _fields_ = [
        *((name, c_void_p) for name in ("tiles", "position", "cell", "table", "content")),
        *((name, c_int64) for name in ("positions", "tile_count", "table_width", "layers")),
        *((name, c_int64) for name in ("block_size", "kv_heads", "head_dim")),
    ]


class LayerStruct(Structure):
    """`struct layer` of decoder.c."""

    _fields_ = [
        *((name, POINTER(MatrixStruct)) for name in ("qkv", "out", "gate_up", "down")),
        *((name, c_void_p) for name in ("heads", "after_attention", "after_mlp", "rope")),
        ("window", c_int64),
    ]


class DecoderStruct(Structure):
    """`struct decoder` of decoder.c."""

    _fields_ = [
        ("layers", POINTER(LayerStruct)),
        *((name, c_int64) for name in ("count", "width", "mlp_width", "heads", "kv_heads")),
        *((name, c_int64) for name in ("head_dim", "is_gelu")),
        *((name, c_float) for name in ("norm_eps", "query_scale", "score_cap")),
    ]


# By name: result and arguments.
SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "bytes_panel": (c_int, []),
    "bytes_depth": (c_int, []),
    "nibbles_lanes": (c_int, []),
    "nibbles_group": (c_int, []),
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
            c_void_p,
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
}


@cache
def library() -> ctypes.CDLL:
    """Load the kernels. Raise a ConfigError with the reason if that fails."""
    compiler = os.environ.get("CC") or "cc"
    if shutil.which(compiler) is None:
        raise ConfigError(
            f"the native kernels need a C compiler, and {compiler!r} was not "
            "found; install one or set CC"
        )
    macros = _run([compiler, *FLAGS, "-dM", "-E", "-x", "c", os.devnull])
    flags = FLAGS if "__clang__" in macros else [*FLAGS, *GCC_FLAGS]
    target = cache_folder() / "native" / f"{_digest(flags, macros)}.so"
    if not target.exists():
        _compile([compiler, *flags], target)
    try:
        kernels = ctypes.CDLL(str(target))
    except OSError as error:
        raise ConfigError(f"the native kernels cannot be loaded: {error}") from None
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


def _digest(flags: list[str], macros: str) -> str:
    """A digest of the sources, the compiler and the instructions of this processor."""
    texts = [source.read_text(encoding="utf-8") for source in [*SOURCES, *HEADERS]]
    return sha256("\n".join([*texts, *flags, macros]).encode()).hexdigest()[:16]


def _compile(compiler: list[str], target: Path) -> None:
    sources = [str(source) for source in SOURCES]
    try:
        with placed(target) as built:
            _run([*compiler, "-fPIC", "-shared", "-o", str(built), *sources, "-lm"])
    except OSError as error:
        raise ConfigError(
            f"the native kernels cannot be written to the cache folder: {error}"
        ) from None


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ConfigError(f"the native kernels do not compile: {done.stderr.strip()}")
    return done.stdout
