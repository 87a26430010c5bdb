"""An engine behind the interface that NVIDIA Dynamo has for engines."""

import logging
import os
from asyncio import Task, create_task, sleep, wait_for
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import dataclass
from signal import SIGTERM
from typing import Any

from dynamo._core import Context
from dynamo.common.backend import (
    EngineConfig,
    GenerateChunk,
    GenerateRequest,
    LLMEngine,
    WorkerConfig,
)
from dynamo.common.backend.health_check import build_health_check_payload
from dynamo.common.backend.publisher import ComponentSnapshot, KvEventSource, ZmqSource
from dynamo.llm.exceptions import CannotConnect, EngineShutdown, InvalidArgument, Unknown

from paceline.core.errors import QueueFull, RequestError
from paceline.core.settings.features import KVEventsConfig
from paceline.engine.api import Report, Stream, TextDelta
from paceline.engine.loop.messages import EngineFailed
from paceline.engine.streaming import StreamingEngine
from paceline.integrations.dynamo.messages import chunk_of, generation_of, last_chunk
from paceline.server.telemetry.prometheus import EngineMetrics, exposition

log = logging.getLogger(__name__)

REPORT_S = 0.5  # between two reports of the load
RANK = 0  # the only one


@dataclass(frozen=True, slots=True)
class DynamoPart:
    """What a worker does in its fleet."""

    model: str  # as clients call it
    registered: EngineConfig
    events: KVEventsConfig | None  # where the engine publishes them; None: nowhere
    prefill: bool  # does it compute prompts for decode workers?
    drain_s: float  # seconds that open requests have to finish at the end


class DynamoEngine(LLMEngine):
    """Dynamo calls `start`, then `generate` for each request, and `cleanup` at the end.

    A request that this worker cannot finish ends with EngineShutdown: with `--migration-limit`,
    Dynamo's frontend then has another worker continue it.
    """

    def __init__(self, engine: StreamingEngine, part: DynamoPart) -> None:
        self._engine, self._part = engine, part
        self._tasks: list[Task[None]] = []
        self._report: Report | None = None  # the latest
        self._publisher: Any = None
        self.failure = ""  # why the engine stopped, if that ends the worker

    @classmethod
    async def from_args(cls, argv: list[str] | None = None) -> tuple[LLMEngine, WorkerConfig]:
        raise NotImplementedError("`paceline serve-dynamo` parses the command line")

    async def start(self, worker_id: int) -> EngineConfig:
        self._report = await self._engine.stats()
        self._tasks = [create_task(self._report_load()), create_task(self._end_with_engine())]
        return self._part.registered

    async def cleanup(self) -> None:
        """Requests that are open after `drain_s` go to other workers."""
        for task in self._tasks:
            task.cancel()
        with suppress(TimeoutError, EngineFailed):
            await wait_for(self._engine.drain(), self._part.drain_s)
        await self._engine.shutdown()

    async def is_quiescent(self) -> bool:
        """Whether no decode worker has KV to read here: it would be held."""
        gauges = (await self._engine.stats()).gauges
        return not (gauges["num_requests_running"] or gauges["kv_cache_usage_perc"])

    async def health_check_payload(self) -> dict[str, Any]:
        return build_health_check_payload(self._engine.get_tokenizer().bos or 0)

    # -- requests -----------------------------------------------------------

    async def generate(
        self, request: GenerateRequest, context: Context
    ) -> AsyncGenerator[GenerateChunk, None]:
        prefill = self._part.prefill
        try:
            asked = generation_of(request, context.id(), self._engine.rules, prefill=prefill)
            stream = self._engine.generate(asked)
            last: TextDelta | None = None
            async for delta in stream:
                if delta.finish_reason is None:
                    yield chunk_of(delta)
                else:
                    last = delta
        except QueueFull as error:
            raise CannotConnect(str(error)) from None
        except RequestError as error:
            raise InvalidArgument(str(error)) from None
        except EngineFailed as error:
            raise EngineShutdown(str(error)) from None
        if last is not None:  # None: the stream was closed
            yield self._last_chunk(last, stream, context)

    def _last_chunk(self, delta: TextDelta, stream: Stream, context: Context) -> GenerateChunk:
        output = stream.output
        assert output is not None, "the stream has ended"
        if delta.finish_reason == "abort" and not context.is_stopped():
            raise EngineShutdown("the worker shuts down")
        if delta.finish_reason == "error":
            gone = self._engine.healthy() is not None
            raise (EngineShutdown if gone else Unknown)(output.error)
        return last_chunk(delta, output, prefill=self._part.prefill)

    async def abort(self, context: Context) -> None:
        await self._engine.abort(context.id())

    # -- what the frontend knows of the worker ------------------------------

    async def kv_event_sources(self) -> list[KvEventSource]:
        if (events := self._part.events) is None:
            return []
        return [ZmqSource(events.endpoint.replace("*", "127.0.0.1"), events.topic, RANK)]

    def component_metrics_dp_ranks(self) -> list[int]:
        return [RANK]

    def attach_snapshot_publisher(self, publisher: Any) -> None:
        self._publisher = publisher

    async def register_prometheus(self, metrics: Any) -> None:
        """Add the metrics of `paceline serve` to those of the worker."""
        metrics.register_prometheus_expfmt_callback(self.exposition)

    def exposition(self) -> str:
        """The latest metrics, on any thread."""
        if self._report is None:
            return ""
        healthy = self._engine.healthy() is None
        found = EngineMetrics(self._report, self._part.model, RANK, healthy, {})
        return exposition([found], {}).decode()

    async def _report_load(self) -> None:
        while True:
            self._report = report = await self._engine.stats()
            if self._publisher is not None:
                self._publisher.publish(RANK, snapshot(report))
            await sleep(REPORT_S)

    async def _end_with_engine(self) -> None:
        """An engine that is gone has an empty cache, and Dynamo forgets it with the worker."""
        self.failure = await self._engine.gone()
        log.error("the worker exits: %s", self.failure)
        os.kill(os.getpid(), SIGTERM)  # Dynamo's runtime ends the worker


def snapshot(report: Report) -> ComponentSnapshot:
    """The load, as Dynamo's router and its metrics take it."""
    blocks, usage = report.cache_config["num_gpu_blocks"], report.gauges["kv_cache_usage_perc"]
    queries = report.counters["prefix_cache_queries"]
    return ComponentSnapshot(
        kv_used_blocks=round(usage * blocks),
        kv_total_blocks=blocks,
        gpu_cache_usage=usage,
        dp_rank=RANK,
        kv_cache_hit_rate=report.counters["prefix_cache_hits"] / queries if queries else None,
    )
