"""An engine on an event loop: questions, pauses, failures and its end."""

import asyncio
import threading
from weakref import ref

import pytest

from paceline.core.errors import QueueFull, RequestError
from paceline.engine.api import GenerationRequest, SamplingParams
from paceline.engine.loop.messages import EngineFailed
from paceline.engine.streaming import StreamingEngine
from paceline.engine.transport.thread import ThreadCore
from tests.engine.streams import paced, pieces_of, with_engine
from tests.engine.support import OraclePort, ask, build_mistaken, components, expected


def test_a_failed_step_ends_streams_with_a_reason() -> None:
    async def use(engine: StreamingEngine) -> None:
        output = await engine.generate(ask("hello", max_tokens=30)).whole()
        assert output.outputs[0].finish_reason == "error"
        assert "step 3 failed" in output.error
        assert engine.healthy() is None
        again = await engine.generate(ask("hello", max_tokens=3, ignore_eos=True)).whole()
        assert again.outputs[0].finish_reason == "length"

    with_engine(use, breaks=lambda plan, where: plan.step == 3 and where == "wait")


def test_an_engine_that_stopped_refuses_and_is_red() -> None:
    async def use(engine: StreamingEngine) -> None:
        output = await engine.generate(ask("hello", max_tokens=30)).whole()
        assert "step 3 failed" in output.error
        assert "step 3 failed" in (engine.healthy() or "")
        with pytest.raises(EngineFailed, match="step 3 failed"):
            engine.generate(ask("hello"))
        assert (await engine.snapshot())["running"] == []

    with_engine(
        use, breaks=lambda plan, where: plan.step == 3 and where == "wait", on_failure="stop"
    )


def test_a_mistake_of_ours_fails_everybody_and_is_red() -> None:
    async def use(engine: StreamingEngine) -> None:
        params = SamplingParams(max_tokens=200, ignore_eos=True)
        streams = [
            engine.generate(GenerationRequest(prompt="hello", params=params)) for _ in range(3)
        ]
        for stream in streams:
            output = await stream.whole()
            assert "AssertionError: ours" in output.error
        assert "ours" in (engine.healthy() or "")
        with pytest.raises(EngineFailed, match="ours"):
            engine.generate(ask("hello"))
        with pytest.raises(EngineFailed, match="ours"):
            await engine.snapshot()
        assert (await engine.stats()).crashes == 1
        assert "ours" in await engine.gone()

    broken = build_mistaken("oracle", tokens=30, crowd=3, num_blocks=200)
    with_engine(use, leaves_nothing=False, made=broken)


def test_questions() -> None:
    async def use(engine: StreamingEngine) -> None:
        await engine.generate(ask("hello", "a", max_tokens=3)).whole()
        assert "a" in await engine.explain("a")
        with pytest.raises(RequestError, match="nobody"):
            await engine.explain("nobody")
        report = await engine.stats()
        assert report.counters["prompt_tokens"] > 0
        size = {"num_gpu_blocks": 96, "block_size": 4}
        assert report.cache_config == {**size, "enable_prefix_caching": True}
        assert await engine.reset_prefix_cache()
        assert await engine.reset_prefix_cache(reset_running_requests=True)
        assert engine.healthy() is None

    with_engine(use)


def test_a_pause_keeps_requests_waiting() -> None:
    async def use(engine: StreamingEngine) -> None:
        await engine.pause()
        stream = engine.generate(ask("hello", max_tokens=3))
        for _ in range(3):
            assert (await engine.snapshot())["waiting"] == [stream.request_id]
        assert (await engine.stats()).gauges["num_requests_waiting"] == 1
        await engine.resume()
        assert (await stream.whole()).outputs[0].finish_reason

    with_engine(use)


def test_drain_waits_for_those_who_are_here() -> None:
    async def use(engine: StreamingEngine) -> None:
        stream = engine.generate(ask("hello", max_tokens=40))
        await engine.drain()
        assert stream.output is not None
        with pytest.raises(QueueFull, match="draining"):
            await engine.generate(ask("hello")).whole()

    with_engine(use)


def test_a_shutdown_ends_what_is_open() -> None:
    async def use(engine: StreamingEngine) -> None:
        await engine.pause("all")
        asked = ask("hello", max_tokens=50, ignore_eos=True)
        streams = [engine.generate(asked) for _ in range(3)]
        await engine.snapshot()
        await engine.shutdown()
        for stream in streams:
            assert (await stream.whole()).outputs[0].finish_reason == "abort"
        with pytest.raises(EngineFailed, match="shut down"):
            engine.generate(ask("hello"))

    before = threading.active_count()
    with_engine(use, leaves_nothing=False)
    assert threading.active_count() <= before


def test_an_engine_that_nobody_used_is_closed_too() -> None:
    async def use(engine: StreamingEngine) -> None:
        assert engine.healthy() is None

    with_engine(use, leaves_nothing=False)


def test_an_engine_of_another_loop_says_so() -> None:
    engine = StreamingEngine.of(components())

    async def use() -> None:
        await engine.generate(ask("hello", max_tokens=2)).whole()

    asyncio.run(use())
    with pytest.raises(EngineFailed, match="another event loop"):
        asyncio.run(use())
    asyncio.run(engine.shutdown())


def test_drain_waits_for_those_who_came_after_others_had_left() -> None:
    async def use(engine: StreamingEngine) -> None:
        await engine.generate(ask("hello", max_tokens=3)).whole()
        assert engine._quiet.is_set()
        stream = engine.generate(ask("hello", max_tokens=40))
        assert not engine._quiet.is_set()
        await engine.drain()
        assert stream.output is not None

    with_engine(use)


def test_a_reset_of_those_who_run_is_one_of_its_own() -> None:
    params = SamplingParams(max_tokens=60, seed=1, ignore_eos=True)

    async def use(engine: StreamingEngine) -> None:
        stream = engine.generate(GenerationRequest(prompt="hello", params=params))
        first = await anext(aiter(stream))
        await engine.pause("all")
        assert not await engine.reset_prefix_cache()
        assert await engine.reset_prefix_cache(reset_running_requests=True)
        await engine.resume()
        rest = await pieces_of(stream)
        ids = [id for delta in (first, *rest) for id in delta.token_ids]
        assert ids == expected("hello", params)[0]

    with_engine(use, breaks=paced)


def test_questions_that_were_answered_are_not_kept() -> None:
    async def use(engine: StreamingEngine) -> None:
        core = engine._core
        assert isinstance(core, ThreadCore)
        for _ in range(3):
            await engine.snapshot()
        assert core._questions == set()

    with_engine(use)


def test_nobody_is_in_an_engine_that_has_died() -> None:
    async def use(engine: StreamingEngine) -> None:
        await engine.pause("all")
        stream = engine.generate(ask("hello", max_tokens=200, ignore_eos=True))
        assert (await engine.stats()).gauges["num_requests_waiting"] == 1
        await engine.resume()
        assert "ours" in (await stream.whole()).error
        report = await engine.stats()
        assert report.gauges["num_requests_waiting"] == 0
        assert report.cache_config["num_gpu_blocks"] == 200

    broken = build_mistaken("oracle", tokens=30, num_blocks=200)
    with_engine(use, leaves_nothing=False, made=broken)


def test_the_end_of_an_async_with_block_shuts_the_engine_down() -> None:
    made = components()

    async def use() -> None:
        async with StreamingEngine.of(made) as engine:
            params = SamplingParams(max_tokens=4, seed=1)
            output = await engine.generate("hello", params).whole()
            assert list(output.outputs[0].token_ids) == expected("hello", params)[0]
            assert engine.get_tokenizer() is made.tokenizer
            assert await engine.reset_prefix_cache()
        with pytest.raises(EngineFailed, match="shut down"):
            await engine.snapshot()

    asyncio.run(use())
    assert isinstance(made.runner, OraclePort)
    assert made.runner.closed


def test_explaining_a_forgotten_request_names_the_setting() -> None:
    async def use(engine: StreamingEngine) -> None:
        with pytest.raises(RequestError, match="last 3 finished requests: raise journal_requests"):
            await engine.explain("zoe")

    with_engine(use, journal_requests=3)


def test_an_engine_is_closed_inside_a_loop_and_outside() -> None:
    made = components()
    with StreamingEngine.of(made) as engine:

        async def use() -> None:
            stream = engine.generate("hello", max_tokens=200, ignore_eos=True)
            await anext(aiter(stream))
            engine.close()
            assert (await stream.whole()).outputs[0].finish_reason == "abort"
            with pytest.raises(EngineFailed, match="shut down"):
                engine.generate("hello")
            assert engine.healthy() == "the engine is shut down"
            assert not await engine.abort("nobody")
            engine.park("nobody", "no reason")
            engine.wake("nobody")

        asyncio.run(use())
    engine.close()
    assert isinstance(made.runner, OraclePort)
    assert made.runner.closed


@pytest.mark.parametrize("used", [False, True])
def test_a_closed_engine_lets_go_of_its_runner(used: bool) -> None:
    made = components()
    engine, runner = StreamingEngine.of(made), ref(made.runner)
    made.runner.itself = made.runner  # type: ignore[attr-defined] - as graphs refer to it
    del made

    async def use() -> None:
        await engine.generate("hello", max_tokens=2).whole()

    if used:
        asyncio.run(use())
    engine.close()
    assert runner() is None
