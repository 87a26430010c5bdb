"""An engine as Dynamo's worker calls it: requests, aborts, failures and the end."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from dynamo._core import Context
from dynamo.common.backend import EngineConfig, GenerateChunk
from dynamo.common.backend.publisher import ZmqSource
from dynamo.llm.exceptions import CannotConnect, EngineShutdown, InvalidArgument, Unknown

from paceline.core.settings.features import KVEventsConfig
from paceline.engine.api import SamplingParams
from paceline.engine.streaming import StreamingEngine
from paceline.integrations.dynamo import engine as dynamo_engine
from paceline.integrations.dynamo.engine import DynamoEngine, DynamoPart
from paceline.llm import AsyncLLM
from tests.engine.streams import paced, with_engine
from tests.engine.support import expected, tokenizer
from tests.wiring.support import dummy_model

EVENTS = KVEventsConfig(enable_kv_cache_events=True, topic="kv")
PROMPT = [3 + place * 7 % 90 for place in range(70)]
FULL = 64  # tokens in full blocks


def part(prefill: bool = False, drain_s: float = 10.0) -> DynamoPart:
    return DynamoPart("oracle", EngineConfig("folder"), EVENTS, prefill, drain_s)


def asked(prompt: list[int] | None = None, max_tokens: int = 8, **groups: Any) -> Any:
    stopping = {"max_tokens": max_tokens, "ignore_eos": True}
    sampling = {"temperature": 0.0, "seed": 1}
    made = {"token_ids": prompt or [5, 6, 7], "stop_conditions": stopping}
    return made | {"sampling_options": sampling} | groups


async def chunks(
    engine: DynamoEngine, request: Any, context: Context | None = None
) -> list[GenerateChunk]:
    return [one async for one in engine.generate(request, context or Context("a"))]


def tokens_of(found: list[GenerateChunk]) -> list[int]:
    return [id for chunk in found for id in chunk["token_ids"]]


def served(use: Callable[[DynamoEngine], Awaitable[None]], **settings: Any) -> None:
    async def run(engine: StreamingEngine) -> None:
        worker = DynamoEngine(engine, part())
        assert await worker.start(1) == EngineConfig("folder")
        await use(worker)
        await worker.cleanup()
        await worker.cleanup()  # twice is allowed

    with_engine(run, leaves_nothing=False, **settings)


def test_tokens_in_and_tokens_out() -> None:
    async def use(engine: DynamoEngine) -> None:
        found = await chunks(engine, asked(max_tokens=20))
        params = SamplingParams(max_tokens=20, ignore_eos=True, seed=1)
        assert (tokens_of(found), found[-1].get("finish_reason")) == expected([5, 6, 7], params)
        assert [one.get("finish_reason") for one in found[:-1]] == [None] * (len(found) - 1)
        usage = found[-1].get("completion_usage")
        assert usage is not None
        assert (usage["prompt_tokens"], usage["completion_tokens"]) == (3, 20)

    served(use)


def test_an_abort_ends_the_request() -> None:
    async def use(engine: DynamoEngine) -> None:
        context = Context("a")
        stream = engine.generate(asked(max_tokens=200), context)
        await anext(stream)
        context.stop_generating()
        await engine.abort(context)
        rest = [one async for one in stream]
        assert rest[-1].get("finish_reason") == "cancelled"

    served(use, breaks=paced)


def test_mistakes_of_clients_are_named() -> None:
    async def use(engine: DynamoEngine) -> None:
        for wrong in (asked([1] * 300), asked([9_999]), asked(sampling_options={"n": 2})):
            with pytest.raises(InvalidArgument):
                await chunks(engine, wrong)

    served(use)


def test_a_full_worker_has_another_one_take_the_request() -> None:
    async def use(engine: DynamoEngine) -> None:
        streams = [engine.generate(asked(max_tokens=200), Context(f"{n}")) for n in range(2)]
        await anext(streams[0])
        waiting = asyncio.create_task(anext(streams[1]))
        await asyncio.sleep(0)
        with pytest.raises(CannotConnect, match="max_num_queued_reqs"):
            await chunks(engine, asked())
        await streams[0].aclose()
        await waiting
        await streams[1].aclose()

    served(use, breaks=paced, max_num_seqs=1, max_num_queued_reqs=1)


def test_a_failed_step_is_no_end_of_the_worker() -> None:
    async def use(engine: DynamoEngine) -> None:
        with pytest.raises(Unknown, match="step"):
            await chunks(engine, asked())
        assert len(tokens_of(await chunks(engine, asked()))) == 8

    served(use, breaks=lambda plan, where: plan.step == 3 and where == "wait")


def test_requests_that_are_open_at_the_end_go_to_other_workers() -> None:
    async def run(engine: StreamingEngine) -> None:
        worker = DynamoEngine(engine, part(drain_s=0.0))
        await worker.start(1)
        stream = worker.generate(asked(max_tokens=200), Context("a"))
        await anext(stream)
        await worker.cleanup()
        with pytest.raises(EngineShutdown, match="shuts down"):
            async for _ in stream:
                pass
        with pytest.raises(EngineShutdown):  # so do later ones
            await chunks(worker, asked())

    with_engine(run, leaves_nothing=False, breaks=paced)


def test_open_requests_may_finish() -> None:
    async def use(engine: DynamoEngine) -> None:
        stream = engine.generate(asked(max_tokens=40), Context("a"))
        first = await anext(stream)
        ending = asyncio.create_task(engine.cleanup())
        rest = [one async for one in stream]
        await ending
        assert len(tokens_of([first, *rest])) == 40

    served(use, breaks=paced)


def test_what_the_router_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dynamo_engine, "REPORT_S", 0.01)

    class Reports:
        def __init__(self) -> None:
            self.found = asyncio.Queue[Any]()

        def publish(self, rank: int, report: Any) -> None:
            self.found.put_nowait((rank, report))

    async def use(engine: DynamoEngine) -> None:
        reports = Reports()
        engine.attach_snapshot_publisher(reports)
        assert engine.component_metrics_dp_ranks() == [0]
        await chunks(engine, asked([1] * 20))
        await chunks(engine, asked([1] * 20))
        rank, report = await reports.found.get()
        while (report.kv_cache_hit_rate, report.kv_used_blocks) != (0.4, 0):  # 16 of 40 tokens
            rank, report = await reports.found.get()
        assert (rank, report.kv_total_blocks) == (0, 96)
        assert 'vllm:generation_tokens_total{engine="0",model_name="oracle"}' in engine.exposition()
        assert await engine.is_quiescent()
        assert await engine.kv_event_sources() == [ZmqSource("tcp://127.0.0.1:5557", "kv", 0)]
        probe: Any = await engine.health_check_payload()
        assert probe["token_ids"] == [tokenizer().bos]
        assert len(tokens_of(await chunks(engine, probe))) == 1

    served(use)


def test_a_prefill_worker_hands_kv_to_a_decode_worker(tmp_path: Path) -> None:
    os.environ.setdefault("UCX_NET_DEVICES", "lo")
    folder = str(dummy_model(tmp_path))
    plain: dict[str, Any] = {"load_format": "dummy", "device": "cpu", "kv_cache_gib": 0.01}

    async def run() -> None:
        async with (
            AsyncLLM(folder, role="prefill", **plain) as one,
            AsyncLLM(folder, role="decode", **plain) as other,
        ):
            prefill, decode = DynamoEngine(one, part(prefill=True)), DynamoEngine(other, part())
            alone = await chunks(decode, asked(PROMPT, routing={"cache_salt": "alone"}))
            (kept,) = await chunks(prefill, asked(PROMPT))
            assert not await prefill.is_quiescent()
            handed = {"disaggregated_params": kept.get("disaggregated_params")}
            read = await chunks(decode, asked(PROMPT, prefill_result=handed))
            assert tokens_of(read) == tokens_of(alone)
            usage = read[-1].get("completion_usage")
            assert usage is not None
            assert usage["prompt_tokens_details"]["cached_tokens"] == FULL
            while not await prefill.is_quiescent():  # the decode worker has read it
                await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(run(), 60))
