"""paceline: an LLM inference engine built around its scheduler."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from paceline.core.errors import ConfigError, PacelineError, QueueFull, RequestError, StepError
from paceline.core.plan import Outputs, Plan, StepResult
from paceline.core.request import Finish, Item, Request
from paceline.core.sampling import Sampling
from paceline.sched.scheduler import Scheduler

if TYPE_CHECKING:  # At run time these names are imported on first use, since they need torch.
    from paceline.engine.api import Ask, GenerationRequest
    from paceline.engine.params import SamplingParams
    from paceline.wiring.llm import LLM, AsyncLLM

__version__ = "0.1.0"
__all__ = [
    "LLM",
    "Ask",
    "AsyncLLM",
    "ConfigError",
    "Finish",
    "GenerationRequest",
    "Item",
    "Outputs",
    "PacelineError",
    "Plan",
    "QueueFull",
    "Request",
    "RequestError",
    "Sampling",
    "SamplingParams",
    "Scheduler",
    "StepError",
    "StepResult",
]

LATER = {  # the module of each name that is imported on first use
    "LLM": "paceline.wiring.llm",
    "AsyncLLM": "paceline.wiring.llm",
    "Ask": "paceline.engine.api",
    "GenerationRequest": "paceline.engine.api",
    "SamplingParams": "paceline.engine.params",
}


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
