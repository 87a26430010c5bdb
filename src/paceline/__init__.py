"""paceline: an LLM inference engine built around its scheduler."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from paceline.core.system.host import limit_spinning

# At run time these names are imported on first use: numpy and torch take long, and an interrupt
# meanwhile must reach the command line, which starts after this import.
if TYPE_CHECKING:
    from paceline.core.adapter import LoRARequest
    from paceline.core.errors import (
        ConfigError,
        PacelineError,
        PluginError,
        PromptTooLong,
        QueueFull,
        RequestError,
        RequestFailed,
        StepError,
    )
    from paceline.core.multimodal import ImageInput
    from paceline.core.plan import Outputs, Plan, StepResult
    from paceline.core.request import Finish, Request
    from paceline.core.sampling import Sampling
    from paceline.engine.api import Ask, EngineFailed, GenerationRequest, RequestOutput, TextDelta
    from paceline.engine.params import SamplingParams
    from paceline.llm import LLM, AsyncLLM
    from paceline.sched.scheduler import Scheduler

limit_spinning()  # Before torch is imported, in every program that uses the package.

__version__ = "0.1.0"
__all__ = [
    "LLM",
    "Ask",
    "AsyncLLM",
    "ConfigError",
    "EngineFailed",
    "Finish",
    "GenerationRequest",
    "ImageInput",
    "LoRARequest",
    "Outputs",
    "PacelineError",
    "Plan",
    "PluginError",
    "PromptTooLong",
    "QueueFull",
    "Request",
    "RequestError",
    "RequestFailed",
    "RequestOutput",
    "Sampling",
    "SamplingParams",
    "Scheduler",
    "StepError",
    "StepResult",
    "TextDelta",
]

MODULES = {
    "paceline.core.errors": (
        *("ConfigError", "PacelineError", "PluginError", "PromptTooLong", "QueueFull"),
        *("RequestError", "RequestFailed", "StepError"),
    ),
    "paceline.core.plan": ("Outputs", "Plan", "StepResult"),
    "paceline.core.adapter": ("LoRARequest",),
    "paceline.core.multimodal": ("ImageInput",),
    "paceline.core.request": ("Finish", "Request"),
    "paceline.core.sampling": ("Sampling",),
    "paceline.engine.api": (
        *("Ask", "EngineFailed", "GenerationRequest", "RequestOutput", "TextDelta"),
    ),
    "paceline.engine.params": ("SamplingParams",),
    "paceline.sched.scheduler": ("Scheduler",),
    "paceline.llm": ("LLM", "AsyncLLM"),
}
LATER = {name: module for module, names in MODULES.items() for name in names}


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


if not TYPE_CHECKING:  # A checker that saw it would take any name for one of the package.

    def __getattr__(name: str) -> Any:
        if name not in LATER:
            raise AttributeError(f"module 'paceline' has no attribute {name!r}")
        try:
            return getattr(import_module(LATER[name]), name)
        except ModuleNotFoundError as error:
            wanted = f"{name} needs {error.name}: pip install 'paceline[model]'"
            raise ImportError(wanted, name=error.name) from error
