"""Our scheduler as a scheduler class of vLLM."""

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    """Import the class on first use: everything else here works without vLLM."""
    if name == "PacelineScheduler":
        return import_module("paceline.integrations.vllm.scheduler").PacelineScheduler
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
