"""What an engine is put together from."""

from collections.abc import Callable
from dataclasses import dataclass

from paceline.engine.engine import INBOX_REQUESTS, Engine, OnFailure
from paceline.engine.frontend import Frontend
from paceline.engine.ports import Runner
from paceline.sched.scheduler import Scheduler
from paceline.text.chat import ChatTemplate
from paceline.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """A scheduler and a runner that agree in their blocks, and the text of the same model."""

    model: str
    scheduler: Scheduler
    runner: Runner
    tokenizer: Tokenizer
    template: ChatTemplate
    depth: int = 1  # steps in flight
    inbox_requests: int = INBOX_REQUESTS  # that wait for the engine's next turn
    on_failure: OnFailure = "continue"  # after a step that failed
    stall_s: float = 60.0  # without a step while requests wait: unhealthy

    def engine(self) -> Engine:
        return Engine(
            self.scheduler,
            self.runner,
            depth=self.depth,
            inbox_requests=self.inbox_requests,
            on_failure=self.on_failure,
            stall_s=self.stall_s,
        )

    def frontend(self, engine: Engine) -> Frontend:
        return Frontend(self.tokenizer, self.template, engine.clock)


Factory = Callable[..., Parts]  # of a model's name and settings by name
