"""`paceline collect-env`: versions, hardware and settings for a bug report."""

import json
import os
import platform
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from paceline import __version__
from paceline.cli.options import JsonFlag
from paceline.cli.setting_flags import ServingSettings

PACKAGES = (
    "numpy",
    "torch",
    "triton",
    "tokenizers",
    "safetensors",
    "jinja2",
    "msgspec",
    "pyzmq",
    "fastapi",
    "uvicorn",
    "uvloop",
    "httpx",
    "huggingface_hub",
    "rich",
    "typer",
    "pydantic",
    "prometheus-client",
    "flashinfer-python",
    "matplotlib",
    "transformers",
)
PREFIXES = ("PACELINE_", "OMP_", "MKL_", "CUDA_", "TORCH_", "HF_")
SECRET = ("KEY", "TOKEN", "SECRET", "PASSWORD")
GIB = 1 << 30

Findings = dict[str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class CollectEnvOptions:
    """Text or JSON."""

    json: JsonFlag = False


def run(options: CollectEnvOptions) -> int:
    """Print versions, hardware and settings for a bug report.

    Environment variables that look like secrets are listed without their values.
    """
    found = findings()
    print(json.dumps(found, indent=1) if options.json else "\n".join(lines_of(found)))
    return 0


def findings() -> Findings:
    return {
        "versions": {
            "paceline": __version__,
            "python": platform.python_version(),
            **{name: installed(name) for name in PACKAGES},
        },
        "machine": {
            "system": platform.platform(),
            "processor": processor(),
            "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
            "memory_gib": memory_gib(),
            **accelerators(),
        },
        "environment": dict(variables()),
        "defaults": {one.name: one.default for one in ServingSettings.all()},
    }


def lines_of(found: Findings) -> Iterator[str]:
    """Values that are not known are left out."""
    for title, values in found.items():
        yield f"{title}:"
        for name, value in values.items():
            if value is not None:
                yield f"  {name}: {value}"


# -- findings --------------------------------------------------------------


def installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def processor() -> str:
    """The model name of the CPU."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


def memory_gib() -> float | None:
    with suppress(AttributeError, ValueError, OSError):  # not on every system
        return round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / GIB, 1)
    return None


def accelerators() -> dict[str, Any]:
    """GPUs and threads, if torch is installed."""
    if installed("torch") is None:
        return {}
    try:
        torch: Any = import_module("torch")
    except (ImportError, OSError) as error:
        return {"torch": f"cannot be imported: {error}"}
    gpus = [torch.cuda.get_device_name(gpu) for gpu in range(torch.cuda.device_count())]
    return {
        "torch_threads": torch.get_num_threads(),
        "cuda": torch.version.cuda,
        "gpus": gpus or None,
    }


def variables() -> Iterator[tuple[str, str]]:
    for name, value in sorted(os.environ.items()):
        if name.startswith(PREFIXES):
            yield name, "(set)" if any(word in name for word in SECRET) else value
