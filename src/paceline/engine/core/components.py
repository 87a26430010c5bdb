"""What an engine is put together from, and how that is found."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

from paceline.core.errors import ConfigError
from paceline.engine.core.engine import DEFAULTS, Engine
from paceline.engine.core.ports import Runner
from paceline.engine.frontend.frontend import Frontend
from paceline.engine.settings import EngineSettings
from paceline.sched.scheduler import Scheduler
from paceline.text.chat_template import ChatTemplate
from paceline.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, eq=False)
class EngineComponents:
    """A scheduler and a runner that agree in their blocks, and the text of the same model."""

    model: str
    scheduler: Scheduler
    runner: Runner
    tokenizer: Tokenizer
    template: ChatTemplate
    depth: int = 1  # steps in flight
    settings: EngineSettings = DEFAULTS

    def engine(self) -> Engine:
        return Engine(self.scheduler, self.runner, depth=self.depth, settings=self.settings)

    def frontend(self, engine: Engine) -> Frontend:
        return Frontend(self.tokenizer, self.template, engine.clock)


Factory = Callable[..., EngineComponents]  # of a model's name and settings by name


def factory_named(name: str) -> Factory:
    """The function behind `module:function`, imported when it is asked for."""
    module, _, function = name.partition(":")
    try:
        return getattr(import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        if isinstance(error, ModuleNotFoundError) and not module.startswith(error.name or ""):
            raise  # it is there, and lacks something itself
        raise ConfigError(f"{name!r} does not name a factory of engine parts: {error}") from None
