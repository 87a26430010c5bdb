"""paceline: an LLM inference engine built around its scheduler."""

from importlib import import_module
from typing import Any

from paceline.core.errors import ConfigError, PacelineError, QueueFull, RequestError, StepError
from paceline.core.plan import Outputs, Plan, StepResult
from paceline.core.request import Finish, Item, Request
from paceline.core.sampling import Sampling
from paceline.sched.scheduler import Scheduler

__version__ = "0.1.0"
__all__ = [
    "ConfigError",
    "Finish",
    "Item",
    "Outputs",
    "PacelineError",
    "Plan",
    "QueueFull",
    "Request",
    "RequestError",
    "Sampling",
    "Scheduler",
    "StepError",
    "StepResult",
]

# Names that need more than numpy are imported on first use.
LATER = {
    "LLM": "paceline.wiring.llm",
    "AsyncLLM": "paceline.wiring.llm",
    "Ask": "paceline.engine.api",
    "SamplingParams": "paceline.engine.params",
}


def __getattr__(name: str) -> Any:
    if name not in LATER:
        raise AttributeError(f"module 'paceline' has no attribute {name!r}")
    try:
        return getattr(import_module(LATER[name]), name)
    except ModuleNotFoundError as error:
        wanted = f"{name} needs {error.name}: pip install 'paceline[model]'"
        raise ImportError(wanted, name=error.name) from error
