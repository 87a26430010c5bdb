"""Publishes what an engine changes in the KV cache."""

from paceline.core.kv_events_config import KVEventsConfig
from paceline.engine.core.ports import StepObserver
from paceline.engine.kv_events.publisher import EventPublisher
from paceline.sched.scheduler import Scheduler


class CacheObserver(StepObserver):
    """The events of a turn, and those of a question, are one batch."""

    def __init__(self, scheduler: Scheduler, publisher: EventPublisher) -> None:
        self._scheduler, self._publisher = scheduler, publisher

    @classmethod
    def publishing(cls, scheduler: Scheduler, config: KVEventsConfig) -> "CacheObserver":
        """Publish as a configuration says."""
        return cls(scheduler, EventPublisher(config, scheduler.config.cache.block_size))

    def changed(self) -> None:
        if events := self._scheduler.cache_events():
            self._publisher.publish(events)

    def close(self) -> None:
        self._publisher.close()
