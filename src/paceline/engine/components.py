"""The components of an engine, and how their factory is found."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

from paceline.core.errors import ConfigError
from paceline.core.settings.features import KVEventsConfig
from paceline.core.system.host import collection_paused
from paceline.engine.frontend.frontend import Frontend
from paceline.engine.grammar.constrained_requests import ConstrainedRequests
from paceline.engine.live.feed import LiveFeed
from paceline.engine.loop.adapters import AdapterRequests
from paceline.engine.loop.engine import DEFAULTS, Engine
from paceline.engine.loop.ports import PromptImages, Runner, StepObserver, WatchedRunner, all_of
from paceline.engine.loop.upkeep import ModelMemory
from paceline.engine.sampling_rules import NO_RULES, SamplingRules
from paceline.engine.settings import EngineSettings
from paceline.engine.trace.frontend_trace import front_end
from paceline.engine.trace.step_trace import StepTrace
from paceline.engine.trace.trace_file import TraceTarget
from paceline.kv.connector import BlockStore, Connector
from paceline.sched.scheduler import Scheduler
from paceline.text.chat_template import ChatTemplate
from paceline.text.tokenizer import Tokenizer

NOT_TRACED = TraceTarget()


@dataclass(frozen=True, slots=True, eq=False)
class Connection:
    """A connector, which the scheduler has too, and the blocks that it reads and writes."""

    connector: Connector
    blocks: BlockStore


@dataclass(frozen=True, slots=True, eq=False)
class EngineComponents:
    """A scheduler and a runner with the same blocks, and the tokenizer of the same model."""

    model: str
    scheduler: Scheduler
    runner: Runner
    tokenizer: Tokenizer
    template: ChatTemplate
    depth: int = 1  # steps in flight
    settings: EngineSettings = DEFAULTS
    rules: SamplingRules = NO_RULES
    constrained: ConstrainedRequests | None = None  # the masks of the runner come from it
    images: PromptImages | None = None  # None: the model reads no images
    adapters: AdapterRequests | None = None  # None: no request may have an adapter
    kv_events: KVEventsConfig | None = None  # None: none are published
    connection: Connection | None = None  # None: KV is kept nowhere else
    trace: TraceTarget = NOT_TRACED
    memory: ModelMemory | None = None  # None: weights and memory cannot be changed

    def engine(self) -> Engine:
        observer = self._observer()
        engine = Engine(
            self.scheduler,
            self.runner,
            depth=self.depth,
            settings=self.settings,
            observer=observer,
            constrained=self.constrained,
        )
        engine.feed = LiveFeed(self.scheduler, engine.clock, observer, engine.observe)
        if self.memory is not None:
            engine.upkeep.memory = self.memory
        if self.adapters is not None:
            engine.serve_adapters(self.adapters)
        if self.connection is not None:
            try:
                self.connection.connector.attach(self.connection.blocks, engine.nudge)
            except Exception:
                observer.close()
                raise
        if isinstance(self.runner, WatchedRunner):
            self.runner.watch(engine.lose_runner)
        return engine

    def _observer(self) -> StepObserver:
        found: list[StepObserver] = []
        if (file := self.trace.opened()) is not None:
            size = self.trace.block_bytes
            found.append(StepTrace(file, self.scheduler, block_bytes=size))
        if self.kv_events is not None:
            events = import_module("paceline.engine.kv_events")  # it needs pyzmq
            found.append(events.CacheObserver.publishing(self.scheduler, self.kv_events))
        return all_of(found)

    def frontend(self, engine: Engine) -> Frontend:
        make = front_end(self.trace)
        found = make(self.tokenizer, self.template, engine.clock, self.rules)
        found.images = self.images
        return found


Factory = Callable[..., EngineComponents]  # takes a model name, and settings by name


def factory_named(name: str) -> Factory:
    """Import the function named `module:function`."""
    module, _, function = name.partition(":")
    try:
        with collection_paused():
            return getattr(import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        if isinstance(error, ModuleNotFoundError) and not module.startswith(error.name or ""):
            raise  # the module exists, but one of its imports does not
        raise ConfigError(f"{name!r} names no factory of engine components: {error}") from None
