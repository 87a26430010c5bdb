"""Settings of the step loop and of the process it runs in, and what else an engine takes."""

from dataclasses import dataclass
from typing import Any, Literal

from paceline.core.adapter import AdapterConfig
from paceline.core.settings.checks import check_types, one_of, positive, require
from paceline.core.settings.config import COMPONENTS, LoadConfig
from paceline.core.settings.features import RecordConfig

MOST_ENGINES = 64  # of one server
# What an engine takes by name. Of two settings with the same name, it takes the first one.
ENGINE_COMPONENTS: dict[str, type[Any]] = {
    "load": LoadConfig,
    "adapters": AdapterConfig,
    **COMPONENTS,
    "record": RecordConfig,
}

OnFailure = Literal["continue", "stop"]


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Limits of the step loop; the scheduler has those of the queue, in `QueueConfig`."""

    inbox_requests: int = 65536  # requests between two turns of the loop; more are refused
    on_failure: OnFailure = "continue"  # after a step that failed; "stop": its process ends
    stall_s: float = 60.0  # seconds without a step, while requests wait, that make it unhealthy

    def __post_init__(self) -> None:
        check_types(self)
        one_of("on_failure", self.on_failure, ("continue", "stop"))
        for name in ("inbox_requests", "stall_s"):
            value = getattr(self, name)
            require(value > 0, f"{name} is {value}; it must be positive")


@dataclass(frozen=True, slots=True)
class CoreSettings:
    """Where the step loop runs, and what the server does when the loop dies.

    A loop on a thread cannot be restarted, so its server exits.
    """

    core: Literal["process", "thread"] = "process"  # a crash of a process leaves the server alive
    on_core_crash: Literal["restart", "exit"] = "restart"  # "exit": end the server with status 1
    core_restarts: int = 3  # most restarts within core_restart_span_s; then the server ends
    data_parallel_size: int = 1  # engines with a process, a model and KV each
    core_restart_span_s: float = 600.0  # seconds in which restarts are counted
    core_restart_wait_s: float = 300.0  # seconds that requests wait for a restart

    def __post_init__(self) -> None:
        check_types(self)
        one_of("core", self.core, ("process", "thread"))
        one_of("on_core_crash", self.on_core_crash, ("restart", "exit"))
        positive(self, "core_restarts", "core_restart_span_s", "core_restart_wait_s")
        size = self.data_parallel_size
        require(
            1 <= size <= MOST_ENGINES,
            f"data_parallel_size is {size}; it must lie in 1..{MOST_ENGINES}",
        )
        require(
            size == 1 or self.core == "process",
            f"data_parallel_size is {size}, and each engine needs a process; set core to process",
        )

    @property
    def restarts(self) -> int:
        """Most restarts within the span."""
        return self.core_restarts if self.on_core_crash == "restart" else 0
