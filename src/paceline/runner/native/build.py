"""Compile the C kernels: for this processor on first use, or for several in a wheel.

The build of a wheel loads this file by itself, so it imports the standard library only.
"""

import os
import platform
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

FOLDER = Path(__file__).parent
PREBUILT = "prebuilt"  # the folder of a wheel's kernels, beside this file
NAMES = (
    "threads.c",
    "linear.c",
    "bytes.c",
    "int4.c",
    "float32.c",
    "attention.c",
    "decoder.c",
    "masks.c",
    "device_memory.c",
)
SOURCES = [FOLDER / name for name in NAMES]
HEADERS = sorted(FOLDER.glob("*.h"))
FLAGS = ["-O3", "-pthread", "-fno-math-errno", "-fno-trapping-math"]
# On some processors gcc fuses a sum only beside others, which gives other bits.
GCC_FLAGS = ["--param=avoid-fma-max-bits=0"]
NATIVE = "-march=native"
CPUINFO, TITLES = Path("/proc/cpuinfo"), ("flags", "Features")  # on x86 and on ARM


class CannotCompile(Exception):
    """There is no compiler, or it reports an error."""


@dataclass(frozen=True, slots=True)
class Level:
    """Instructions that kernels may use.

    machine  as the system names the kind of processor
    flag     of the compiler
    needs    what the processor has to have, by its names in /proc/cpuinfo
    """

    machine: str
    name: str
    flag: str
    needs: frozenset[str]


AVX2 = frozenset({"abm", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"})
AVX512 = AVX2 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
# The best ones first: each compiles to other code than those below it.
LEVELS = (
    Level("x86_64", "avx512vnni", "-march=x86-64-v4 -mavx512vnni", AVX512 | {"avx512_vnni"}),
    Level("x86_64", "avx512", "-march=x86-64-v4", AVX512),
    Level("x86_64", "avx2", "-march=x86-64-v3", AVX2),
    Level("aarch64", "dotprod", "-march=armv8.2-a+dotprod", frozenset({"asimddp"})),
)


def levels_here() -> list[Level]:
    """The levels for this kind of processor."""
    return [level for level in LEVELS if level.machine == platform.machine()]


def best_level(cpuinfo: Path = CPUINFO) -> Level | None:
    """The best level that this processor has; None if it has none, or that is unknown."""
    has = set(features(cpuinfo))
    return next((level for level in levels_here() if level.needs <= has), None)


def features(cpuinfo: Path = CPUINFO) -> list[str]:
    """Features of the processor, as Linux names them; empty on other systems."""
    try:
        lines = cpuinfo.read_text(errors="replace").splitlines()
    except OSError:
        return []
    values = (line.partition(":") for line in lines)
    return next((value for key, _, value in values if key.strip() in TITLES), "").split()


def prebuilt_name(level: Level) -> str:
    """With a digest of the sources: changed sources are compiled again."""
    return f"{level.name}-{digest()}.so"


def digest(*more: str) -> str:
    texts = [source.read_text(encoding="utf-8") for source in [*SOURCES, *HEADERS]]
    return sha256("\n".join([*texts, *FLAGS, *more]).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Compiler:
    """A C compiler, and the flags that it needs."""

    command: str
    flags: tuple[str, ...]
    macros: str  # what it defines for this processor

    @staticmethod
    def found() -> "Compiler":
        command = os.environ.get("CC") or "cc"
        if shutil.which(command) is None:
            raise CannotCompile(
                f"the native kernels need a C compiler, and {command!r} was not found; "
                "install one or set CC"
            )
        macros = _run([command, *FLAGS, NATIVE, "-dM", "-E", "-x", "c", os.devnull])
        more = [] if "__clang__" in macros else GCC_FLAGS
        return Compiler(command, (*FLAGS, *more), macros)

    @property
    def digest(self) -> str:
        """A digest of the sources, the compiler and the instructions of this processor."""
        return digest(*self.flags, self.macros)

    def compile(self, target: Path, march: str = NATIVE) -> None:
        sources = map(str, SOURCES)
        options = [*self.flags, *march.split(), "-fPIC", "-shared", "-o", str(target)]
        _run([self.command, *options, *sources, "-lm", "-ldl"])


def compile_all(folder: Path) -> Iterator[Path]:
    """Compile the kernels of each level for this kind of processor; the files."""
    compiler = Compiler.found()
    for level in levels_here():
        target = folder / prebuilt_name(level)
        compiler.compile(target, level.flag)
        yield target


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CannotCompile(f"the native kernels do not compile: {done.stderr.strip()}")
    return done.stdout
