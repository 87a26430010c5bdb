"""`paceline collect-env`: versions, hardware and settings for a bug report."""

import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from paceline import __version__
from paceline.cli.options import JsonFlag
from paceline.cli.setting_flags import SHOWN_DEFAULTS, ServingSettings
from paceline.core.errors import ConfigError
from paceline.core.system.host import in_cpuinfo, processor_name, usable_cores
from paceline.wiring.settings import CPU_DEFAULTS, CUDA_DEFAULTS

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

    Environment variables that look like secrets are listed without their values. C kernels are
    compiled if there are none, as at the first start of a model.
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
            "processor": processor_name(),
            "cpu_flags": in_cpuinfo("flags") or in_cpuinfo("Features"),
            "compiler": compiler(),
            "cores": usable_cores(),
            "memory_gib": memory_gib(),
            **accelerators(),
        },
        "environment": dict(variables()),
        "defaults": engine_defaults(),
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


def compiler() -> str | None:
    """The C compiler that builds kernels where none are prebuilt."""
    command = os.environ.get("CC") or "cc"
    with suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(
            [command, "--version"], capture_output=True, text=True, timeout=10, check=False
        )
        return f"{command}: {done.stdout.partition(chr(10))[0]}"
    return None


def kernels() -> str:
    """Where the C kernels are, or why there are none. They are compiled if necessary."""
    from paceline.runner.native.library import library

    try:
        return library()._name
    except ConfigError as error:
        return f"none: {error}"


def engine_defaults() -> dict[str, Any]:
    """The defaults of a server on this machine; a text where they depend on the model."""
    of_device = CUDA_DEFAULTS if has_gpu() else CPU_DEFAULTS
    by_model = {"max_model_len": SHOWN_DEFAULTS["max_model_len"]}
    plain = {one.name: one.default for one in ServingSettings.all()}
    return {**plain, **of_device, **by_model}


def has_gpu() -> bool:
    torch: Any = sys.modules.get("torch")
    return torch is not None and torch.cuda.is_available()


def memory_gib() -> float | None:
    with suppress(AttributeError, ValueError, OSError):  # not on every system
        return round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / GIB, 1)
    return None


def accelerators() -> dict[str, Any]:
    """GPUs, threads and kernels, if torch is installed."""
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
        "kernels": kernels(),
    }


def variables() -> Iterator[tuple[str, str]]:
    for name, value in sorted(os.environ.items()):
        if name.startswith(PREFIXES):
            yield name, "(set)" if any(word in name for word in SECRET) else value
