"""paceline: an LLM inference engine built around its scheduler."""

from paceline.core.errors import ConfigError, PacelineError, QueueFull, RequestError, StepError
from paceline.core.plan import Outputs, Plan, StepResult
from paceline.core.request import Finish, Item, Request
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
    "Scheduler",
    "StepError",
    "StepResult",
]
