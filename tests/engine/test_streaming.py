"""Streams on an event loop: in time, in order, and with a hang-up that reaches the scheduler."""

import asyncio
import gc
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from time import sleep
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from paceline.core.errors import QueueFull, RequestError
from paceline.core.plan import Plan
from paceline.engine.api import GenerationRequest, SamplingParams, TextDelta
from paceline.engine.loop.messages import Delivery
from paceline.engine.prompts import MANY_MESSAGES
from paceline.engine.streaming import StreamingEngine
from tests.engine.frontend.harness import one_of_three_stops
from tests.engine.streams import paced, pieces_of, with_engine
from tests.engine.support import ask, expected, expected_text


@pytest.mark.parametrize("depth", [1, 2])
def test_streams_add_up_to_the_reference(depth: int) -> None:
    params = [SamplingParams(max_tokens=30, seed=seed) for seed in range(20)]

    async def use(engine: StreamingEngine) -> None:
        streams = [engine.generate(GenerationRequest(prompt="hello", params=one)) for one in params]
        heard = await asyncio.gather(*map(pieces_of, streams))
        for one, stream, deltas in zip(params, streams, heard, strict=True):
            ids, reason = expected("hello", one)
            assert "".join(delta.text for delta in deltas) == expected_text(ids, reason)
            assert [id for delta in deltas for id in delta.token_ids] == ids
            assert [delta.finish_reason for delta in deltas if delta.finish_reason] == [reason]
            assert stream.output is not None
            assert stream.output.outputs[0].text == expected_text(ids, reason)
            assert stream.output.usage.prompt_tokens == len(stream.prompt_token_ids)

    with_engine(use, depth=depth)


def test_the_whole_at_once() -> None:
    async def use(engine: StreamingEngine) -> None:
        output = await engine.generate(ask("hello", max_tokens=10, n=2, seed=1)).whole()
        for index, answer in enumerate(output.outputs):
            ids, _ = expected("hello", SamplingParams(max_tokens=10), seed=1 + index)
            assert list(answer.token_ids) == ids

    with_engine(use)


def test_a_prompt_has_every_form_that_a_script_may_use() -> None:
    async def use(engine: StreamingEngine) -> None:
        ids = engine.get_tokenizer().encode("hello")
        params = SamplingParams(max_tokens=5, temperature=0.0)
        wanted = (await engine.generate("hello", params).whole()).outputs
        forms: list[Any] = [ids, {"prompt": "hello"}, {"prompt_token_ids": ids}, ["hello"]]
        for form in [*forms, GenerationRequest(prompt="hello")]:
            assert (await engine.generate(form, sampling_params=params).whole()).outputs == wanted
        stream = engine.generate("hello", max_tokens=5, temperature=0.0)
        assert "".join([one.text async for one in stream]) == wanted[0].text
        with pytest.raises(RequestError, match="2 prompts are given"):
            engine.generate(["a", "b"])  # type: ignore[arg-type]
        with pytest.raises(RequestError, match="lora_request is not supported"):
            engine.generate("a", lora_request=1)  # type: ignore[call-arg]

    with_engine(use)


def test_a_conversation_is_streamed() -> None:
    question = [{"role": "user", "content": "hello"}]

    async def use(engine: StreamingEngine) -> None:
        params = SamplingParams(max_tokens=5, temperature=0.0)
        output = await engine.chat(question, params, "mine").whole()
        assert output.request_id == "mine"
        assert (output.prompt or "").endswith("<|im_start|>assistant\n")
        for prompt in (question, {"messages": question}):
            assert (await engine.generate(prompt, params).whole()).outputs == output.outputs
        stream = engine.chat(
            question, max_tokens=1, chat_template="{{ mood }}", variables={"mood": "a"}
        )
        assert (await stream.whole()).prompt == "a"

    with_engine(use)


def test_a_request_has_the_id_and_the_priority_that_it_is_given() -> None:
    async def use(engine: StreamingEngine) -> None:
        await engine.pause("all")
        late = engine.generate("a", SamplingParams(max_tokens=1), "late", priority=5)
        soon = engine.generate("a", SamplingParams(max_tokens=1), request_id="soon", priority=1)
        assert (await engine.snapshot())["waiting"] == ["soon", "late"]
        await engine.resume()
        assert (await soon.whole()).request_id == "soon"
        await late.whole()

    with_engine(use, policy="priority")


def test_refusals_are_raised() -> None:
    async def use(engine: StreamingEngine) -> None:
        with pytest.raises(RequestError, match="empty"):
            engine.generate(ask(""))
        for read in (pieces_of, lambda stream: stream.whole()):
            with pytest.raises(RequestError, match="max_model_len"):
                await read(engine.generate(ask("hello " * 400)))

    with_engine(use)


def test_others_have_a_turn_between_two_deliveries() -> None:
    async def use(engine: StreamingEngine) -> None:
        turns: list[str] = []
        nothing = np.empty(0, np.int32)
        empty = Delivery(0.0, nothing.astype(np.int64), nothing.reshape(0, 1), nothing)
        await engine.snapshot()  # so that the loop is known
        with patch.object(engine._frontend, "deliver", lambda _: turns.append("delivery") or []):
            engine.deliver(empty)
            engine.deliver(empty)
            for _ in range(4):
                await asyncio.sleep(0)
                turns.append("other")
        assert turns.count("delivery") == 2
        assert "delivery delivery" not in " ".join(turns)

    with_engine(use)


def test_a_conversation_that_takes_long_to_render_is_rendered_on_a_thread() -> None:
    said = {"role": "user", "content": "hello"}
    parts = {"role": "user", "content": [{"type": "text", "text": "hello"}]}
    short = [GenerationRequest(messages=[said] * MANY_MESSAGES)]
    long = [
        GenerationRequest(messages=[said] * (MANY_MESSAGES + 1)),
        GenerationRequest(messages=[parts]),
        GenerationRequest(messages=[said], tools=[{"type": "function"}]),
        GenerationRequest(messages=[said], variables={"thinking": False}),
    ]

    async def use(engine: StreamingEngine) -> None:
        render, here, seen = engine._frontend.template.render, threading.get_ident(), list[bool]()

        def noted(*given: Any, **named: Any) -> str:
            seen.append(threading.get_ident() == here)
            return render(*given, **named)

        with patch.object(engine._frontend.template, "render", noted):
            for one in (*short, *long):
                with suppress(RequestError):  # the template shows no tools
                    await engine.tokenized(one)
        assert seen == [True] * len(short) + [False] * len(long)

    with_engine(use)


def test_a_prompt_can_be_tokenized_before_it_is_sent() -> None:
    async def use(engine: StreamingEngine) -> None:
        given = ask("hello", max_tokens=3)
        prompt = await engine.tokenized(given)
        assert (prompt.text, prompt.token_ids) == ("hello", engine.get_tokenizer().encode("hello"))
        whole = await engine.generate(given.ready(prompt, request_id="a")).whole()
        assert (whole.request_id, whole.prompt) == ("a", "hello")

    with_engine(use)


def test_prompts_that_are_being_tokenized_take_up_room() -> None:
    async def use(engine: StreamingEngine) -> None:
        engine.check_room(2)
        reading = [asyncio.create_task(engine.tokenized(ask("hello " * 200))) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(QueueFull, match="2 requests are open; 1 more would exceed"):
            engine.check_room(1)
        await asyncio.gather(*reading, return_exceptions=True)
        engine.check_room(2)

    with_engine(use, max_num_seqs=1, max_num_queued_reqs=1)


def test_a_request_that_cannot_be_sent_leaves_nothing_behind() -> None:
    async def use(engine: StreamingEngine) -> None:
        def unable(_request: Any, _parked: str) -> None:
            raise OverflowError("too large")

        with patch.object(engine._core, "submit", unable), pytest.raises(OverflowError):
            engine.generate(GenerationRequest(prompt="hello", request_id="a"))
        assert not engine._frontend.open
        output = await engine.generate(GenerationRequest(prompt="hello", request_id="a")).whole()
        assert output.request_id == "a"

    with_engine(use)


async def cancelled(engine: StreamingEngine, stream: Any) -> None:
    task = asyncio.ensure_future(pieces_of(stream))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def closed(engine: StreamingEngine, stream: Any) -> None:
    await stream.aclose()
    assert await pieces_of(stream) == []


async def waited_for(engine: StreamingEngine, stream: Any) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(stream.whole(), 0.01)


async def aborted(engine: StreamingEngine, stream: Any) -> None:
    assert await engine.abort(stream.request_id)
    deltas = await pieces_of(stream)
    assert deltas[-1].finish_reason == "abort"
    assert not await engine.abort(stream.request_id)


@pytest.mark.parametrize("leave", [cancelled, closed, waited_for, aborted])
def test_whoever_leaves_takes_the_request_along(
    leave: Callable[[StreamingEngine, Any], Coroutine[Any, Any, None]],
) -> None:
    async def use(engine: StreamingEngine) -> None:
        stream = engine.generate(ask("hello", max_tokens=240, ignore_eos=True))
        await anext(aiter(stream))
        await engine.pause("all")  # so that nothing ends before somebody leaves
        beside = engine.generate(ask("thing", max_tokens=20, ignore_eos=True))
        await leave(engine, stream)
        await engine.resume()
        assert len((await beside.whole()).outputs[0].token_ids) == 20
        while stream.request_id in (await engine.snapshot())["requests"]:
            await asyncio.sleep(0.001)

    with_engine(use, depth=2, num_blocks=200, breaks=paced)


def test_several_requests_are_aborted_at_once() -> None:
    async def use(engine: StreamingEngine) -> None:
        await engine.pause("all")
        asked = ask("hello", max_tokens=50, ignore_eos=True)
        streams = [engine.generate(asked) for _ in range(3)]
        assert await engine.abort(["nobody", *(one.request_id for one in streams[:2])])
        assert not await engine.abort(["nobody"])
        await engine.resume()
        reasons = [(await one.whole()).outputs[0].finish_reason for one in streams]
        assert (reasons[:2], reasons[2]) == (["abort"] * 2, "length")

    with_engine(use)


def test_a_stream_that_is_dropped_is_aborted() -> None:
    async def use(engine: StreamingEngine) -> None:
        await engine.pause("all")
        name = engine.generate(ask("hello", max_tokens=200)).request_id
        gc.collect()
        while name in (await engine.snapshot())["requests"]:
            await asyncio.sleep(0.001)
        await engine.resume()

    with_engine(use)


def test_a_slow_reader_gets_everything_and_holds_nobody_up() -> None:
    async def use(engine: StreamingEngine) -> None:
        params = SamplingParams(max_tokens=100, ignore_eos=True, seed=1)
        slow = engine.generate(GenerationRequest(prompt="hello", params=params))
        first = await anext(aiter(slow))
        await engine.generate(GenerationRequest(prompt="hello", params=params)).whole()
        while slow.output is None:
            await asyncio.sleep(0.001)
        rest = await pieces_of(slow)
        assert len(rest) <= 1  # all that was not read waits as one piece
        ids, _ = expected("hello", params)
        assert [id for delta in (first, *rest) for id in delta.token_ids] == ids

    with_engine(use)


def test_two_hundred_clients_that_come_and_go() -> None:
    async def client(engine: StreamingEngine, number: int) -> str:
        stream = engine.generate(ask(f"hello {number}", max_tokens=12, seed=number))
        heard: list[TextDelta] = []
        async for delta in stream:
            heard.append(delta)
            if number % 3 == 0 and len(heard) == number % 5 + 1:
                await stream.aclose()
        if number % 3:
            ids, reason = expected(f"hello {number}", SamplingParams(max_tokens=12, seed=number))
            assert "".join(delta.text for delta in heard) == expected_text(ids, reason)
        return stream.request_id

    async def use(engine: StreamingEngine) -> None:
        names = await asyncio.gather(*(client(engine, number) for number in range(200)))
        assert len(set(names)) == 200

    with_engine(use, depth=2, num_blocks=40)


def test_a_request_whose_time_is_over_ends_at_once() -> None:
    async def use(engine: StreamingEngine) -> None:
        await engine.pause("all")  # so that the engine says nothing by itself
        params = SamplingParams(max_tokens=100, ignore_eos=True)
        late = engine.generate(
            GenerationRequest(prompt="hello", params=params, request_id="a", timeout=0.05)
        )
        kept = engine.generate(GenerationRequest(prompt="hello", params=params, timeout=60.0))
        output = await late.whole()
        assert output.outputs[0].finish_reason == "timeout"
        assert output.error == "the request did not end within 0.05 s"
        assert output.timings.total_s >= 0.05
        await engine.resume()
        assert (await kept.whole()).outputs[0].finish_reason == "length"
        again = engine.generate(GenerationRequest(prompt="hello", params=params, request_id="a"))
        assert (await again.whole()).usage.completion_tokens == 100
        report = await engine.stats()
        assert report.request_success == {"timeout": 1, "length": 2}
        assert report.histograms["e2e_request_latency_seconds"].count == 3

    with_engine(use)


def test_what_came_before_the_timeout_is_told_and_the_engine_learns_of_it() -> None:
    def slow(_plan: Plan, where: str) -> bool:
        sleep(0.01 if where == "launch" else 0)
        return False

    async def use(engine: StreamingEngine) -> None:
        params = SamplingParams(max_tokens=200, ignore_eos=True, n=2)
        stream = engine.generate(
            GenerationRequest(prompt="hello", params=params, request_id="a", timeout=1.0)
        )
        deltas = await pieces_of(stream)
        assert stream.output is not None
        for answer in stream.output.outputs:
            assert answer.finish_reason == "timeout"
            assert 0 < len(answer.token_ids) < 200
            told = [delta.text for delta in deltas if delta.index == answer.index]
            assert "".join(told) == answer.text
        while (await engine.snapshot())["requests"]:
            await asyncio.sleep(0.001)
        assert "abort" in await engine.explain("a")

    with_engine(use, breaks=slow, num_blocks=120)


def test_a_timeout_is_positive() -> None:
    with pytest.raises(RequestError, match="timeout is 0"):
        GenerationRequest(prompt="hello", timeout=0)


def test_one_choice_that_stops_leaves_the_others_alone() -> None:
    params, stop = one_of_three_stops()

    async def use(engine: StreamingEngine) -> None:
        one = GenerationRequest(prompt="hello", params=replace(params, stop=stop))
        output = await engine.generate(one).whole()
        assert [one.finish_reason for one in output.outputs] == ["length", "stop", "length"]

    with_engine(use)


def test_a_prompt_may_be_token_ids() -> None:
    async def use(engine: StreamingEngine) -> None:
        text = await engine.generate("hello").whole()
        ids = await engine.generate(engine.get_tokenizer().encode("hello")).whole()
        assert ids.outputs == text.outputs
        with pytest.raises(RequestError, match="is no prompt"):
            engine.generate(7)  # type: ignore[arg-type]

    with_engine(use)
