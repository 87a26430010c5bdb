"""Settings of the step loop and of the process it runs in, and what else an engine takes."""

from dataclasses import dataclass
from typing import Any, Literal

from paceline.core.adapter import AdapterConfig
from paceline.core.settings.checks import check_types, positive, require
from paceline.core.settings.config import COMPONENTS
from paceline.core.settings.features import RecordConfig
from paceline.core.settings.load import LoadConfig

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
    """Limits of the step loop; the scheduler has those of the queue, in `QueueConfig`.

    Attributes:
        inbox_requests (requests): Maximum number of requests that wait for the next turn of the
            loop.
        on_failure: What happens after a failed step: continue with other requests, or stop.
        stall_s: /health fails after this time without a step while requests wait.
    """

    inbox_requests: int = 65536
    on_failure: OnFailure = "continue"
    stall_s: float = 60.0

    def __post_init__(self) -> None:
        check_types(self)
        positive(self, "inbox_requests", "stall_s")


@dataclass(frozen=True, slots=True)
class CoreSettings:
    """Where the step loop runs, and what the server does when the loop dies.

    A loop on a thread cannot be restarted, so its server exits.

    Attributes:
        core: Run the engine loop in a process of its own, whose crash the server survives, or on a
            thread.
        on_core_crash: Restart a crashed engine process, or exit the server with status 1.
        core_restarts (restarts): The server exits after more than this many restarts within
            core_restart_span_s.
        data_parallel_size (engines): Engines with a process, a copy of the model and KV each, on
            GPUs or CPU cores of their own. A request goes to the engine that knows most of its
            prompt, unless that one is busy.
        core_restart_span_s: Time within which restarts are counted.
        core_restart_wait_s: Requests wait so long for an engine that is restarted; then they end.
    """

    core: Literal["process", "thread"] = "process"
    on_core_crash: Literal["restart", "exit"] = "restart"
    core_restarts: int = 3
    data_parallel_size: int = 1
    core_restart_span_s: float = 600.0
    core_restart_wait_s: float = 300.0

    def __post_init__(self) -> None:
        check_types(self)
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
