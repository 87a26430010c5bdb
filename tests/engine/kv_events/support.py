"""Endpoints, and an engine that publishes."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from paceline.core.settings.features import KVEventsConfig
from paceline.engine.components import EngineComponents
from tests.engine.kv_events.consumer import Consumer
from tests.engine.support import components


@dataclass(frozen=True)
class Endpoints:
    live: str
    replay: str

    def config(self, **fields: Any) -> KVEventsConfig:
        return KVEventsConfig(**self.fields(**fields))

    def fields(self, **fields: Any) -> dict[str, Any]:
        own = {"endpoint": self.live, "replay_endpoint": self.replay}
        return {"enable_kv_cache_events": True, **own, **fields}

    def consumer(self, topic: str = "") -> Consumer:
        return Consumer(self.live, self.replay, topic)


@contextmanager
def endpoints() -> Iterator[Endpoints]:
    """In a folder with a short name: the names of sockets are limited."""
    with TemporaryDirectory(prefix="kv") as folder:
        live, replay = (f"ipc://{Path(folder) / one}" for one in ("live", "replay"))
        yield Endpoints(live, replay)


def build(_model: str, events: dict[str, Any], **settings: Any) -> EngineComponents:
    """An engine without weights that publishes events."""
    made = components(enable_kv_cache_events=True, **settings)
    return replace(made, kv_events=KVEventsConfig(**events))
