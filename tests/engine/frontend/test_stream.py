"""The reader's end: pieces coalesce while nobody reads, and the end comes last."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import numpy as np
import pytest

from paceline.core.errors import QueueFull, RequestError
from paceline.core.events import NO_TIMINGS
from paceline.engine.api import RequestOutput, TextDelta, Usage
from paceline.engine.frontend.stream import DeltaBuffer, DeltaStream

OUTPUT = RequestOutput("a", None, (), (), Usage(0, 0, 0), NO_TIMINGS)


def run(use: Callable[[DeltaBuffer, DeltaStream, list[str]], Awaitable[None]]) -> None:
    async def main() -> None:
        buffer, aborts = DeltaBuffer(), list[str]()
        await use(
            buffer, DeltaStream("a", np.array([1, 2], np.int32), buffer, aborts.append), aborts
        )

    asyncio.run(main())


def test_pieces_of_a_choice_become_one_while_nobody_reads() -> None:
    async def use(buffer: DeltaBuffer, stream: DeltaStream, aborts: list[str]) -> None:
        for token, letter in enumerate("abcd"):
            buffer.put(TextDelta(token % 2, letter, (token,)))
        buffer.put(TextDelta(1, "", (9,), finish_reason="stop", stop_reason="x"))
        buffer.close(OUTPUT)
        heard = [delta async for delta in stream]
        assert heard == [
            TextDelta(0, "ac", (0, 2)),
            TextDelta(1, "bd", (1, 3, 9), finish_reason="stop", stop_reason="x"),
        ]
        assert stream.output is OUTPUT
        assert aborts == []

    run(use)


def test_a_reader_waits_for_what_comes() -> None:
    async def use(buffer: DeltaBuffer, stream: DeltaStream, aborts: list[str]) -> None:
        reader = asyncio.ensure_future(anext(aiter(stream)))
        await asyncio.sleep(0)
        buffer.put(TextDelta(0, "a", (1,)))
        assert (await reader).text == "a"
        last = asyncio.ensure_future(stream.whole())
        await asyncio.sleep(0)
        buffer.close(OUTPUT)
        assert await last is OUTPUT
        assert aborts == []

    run(use)


@pytest.mark.parametrize(
    ("end", "told"),
    [
        (lambda buffer: buffer.close(OUTPUT), StopAsyncIteration),
        (lambda buffer: buffer.refuse(QueueFull("full")), QueueFull),
        (DeltaBuffer.shut, StopAsyncIteration),
    ],
    ids=["closed", "refused", "shut"],
)
def test_a_reader_who_waits_hears_of_the_end(
    end: Callable[[DeltaBuffer], None], told: type[Exception]
) -> None:
    async def use(buffer: DeltaBuffer, stream: DeltaStream, aborts: list[str]) -> None:
        async def read() -> type[Exception] | None:
            try:
                await anext(aiter(stream))
            except (QueueFull, StopAsyncIteration) as error:
                return type(error)
            return None

        reader = asyncio.ensure_future(read())
        await asyncio.sleep(0)
        end(buffer)
        assert await asyncio.wait_for(reader, 10) is told

    run(use)


@pytest.mark.parametrize("read", [DeltaStream.__anext__, DeltaStream.whole])
def test_a_reader_who_is_cancelled_aborts(
    read: Callable[[DeltaStream], Coroutine[Any, Any, object]],
) -> None:
    async def use(buffer: DeltaBuffer, stream: DeltaStream, aborts: list[str]) -> None:
        reader = asyncio.ensure_future(read(stream))
        await asyncio.sleep(0)
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader
        assert aborts == ["a"]

    run(use)


def test_a_refusal_is_raised_and_aborts_nobody() -> None:
    async def use(buffer: DeltaBuffer, stream: DeltaStream, aborts: list[str]) -> None:
        buffer.refuse(QueueFull("full"))
        with pytest.raises(QueueFull):
            await anext(aiter(stream))
        with pytest.raises(QueueFull):
            await stream.whole()
        await stream.aclose()
        assert aborts == []

    run(use)


def test_closing_aborts_once_and_ends_the_iteration() -> None:
    async def use(buffer: DeltaBuffer, stream: DeltaStream, aborts: list[str]) -> None:
        buffer.put(TextDelta(0, "a", (1,)))
        await stream.aclose()
        await stream.aclose()
        buffer.put(TextDelta(0, "b", (2,)))
        buffer.close(OUTPUT)
        assert [delta async for delta in stream] == []
        assert aborts == ["a"]

    run(use)


def test_a_stream_that_was_closed_early_has_no_whole_output() -> None:
    async def use(buffer: DeltaBuffer, stream: DeltaStream, aborts: list[str]) -> None:
        await stream.aclose()
        with pytest.raises(RequestError, match="'a' was closed before its end"):
            await stream.whole()

    run(use)


def test_a_stream_that_has_ended_aborts_nobody_who_took_its_name() -> None:
    async def use(buffer: DeltaBuffer, stream: DeltaStream, aborts: list[str]) -> None:
        buffer.close(OUTPUT)
        await stream.aclose()
        del stream
        assert aborts == []

    run(use)


def test_a_listener_gets_each_delta_at_once_and_what_waited_first() -> None:
    async def use(buffer: DeltaBuffer, stream: DeltaStream, aborts: list[str]) -> None:
        taken: list[TextDelta] = []

        def put(delta: TextDelta) -> bool:
            taken.append(delta)
            return True

        early = [TextDelta(1, "a", (1,)), TextDelta(0, "b", (2,)), TextDelta(1, "c", (3,))]
        for delta in early:
            buffer.put(delta)
        stream.listen(put)
        assert taken == [TextDelta(1, "ac", (1, 3)), TextDelta(0, "b", (2,))]
        last = TextDelta(0, "d", (4,))
        buffer.put(last)
        assert taken[2:] == [last]
        ending = asyncio.ensure_future(stream.whole())
        buffer.close(OUTPUT)
        assert await ending is OUTPUT
        assert aborts == []

    run(use)


def test_a_delta_that_is_not_taken_waits_and_later_ones_join_it() -> None:
    async def use(buffer: DeltaBuffer, stream: DeltaStream, aborts: list[str]) -> None:
        taken: list[TextDelta] = []
        room = [1]

        def put(delta: TextDelta) -> bool:
            if len(taken) == room[0]:
                return False
            taken.append(delta)
            return True

        stream.listen(put)
        for token, index in enumerate((0, 0, 1, 0)):
            buffer.put(TextDelta(index, f"{token}", (token,)))
        assert taken == [TextDelta(0, "0", (0,))]
        room[0] = 2
        stream.listen(put)
        assert taken[1:] == [TextDelta(0, "13", (1, 3))]
        buffer.close(OUTPUT)
        assert await stream.whole() is OUTPUT
        room[0] = 3
        stream.listen(put)  # also after the end
        assert taken[2:] == [TextDelta(1, "2", (2,))]

    run(use)


def test_a_closed_stream_calls_no_listener() -> None:
    async def use(buffer: DeltaBuffer, stream: DeltaStream, aborts: list[str]) -> None:
        taken: list[TextDelta] = []
        stream.listen(lambda delta: bool(taken.append(delta)))
        await stream.aclose()
        buffer.put(TextDelta(0, "a", (1,)))
        assert (taken, aborts) == ([], ["a"])

    run(use)


def test_a_listener_that_raises_is_called_no_more_and_its_deltas_wait(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def use(buffer: DeltaBuffer, stream: DeltaStream, aborts: list[str]) -> None:
        def fail(delta: TextDelta) -> bool:
            raise ValueError(delta.text)

        stream.listen(fail)
        for letter in "ab":
            buffer.put(TextDelta(0, letter, (1,)))
        buffer.close(OUTPUT)
        assert [delta.text async for delta in stream] == ["ab"]

    run(use)
    (record,) = caplog.records
    assert record.getMessage() == "a listener failed, and is called no more"


def test_the_source_hears_of_the_first_listener_before_anything_is_passed() -> None:
    async def use(buffer: DeltaBuffer, stream: DeltaStream, aborts: list[str]) -> None:
        taken: list[str] = []

        def put(delta: TextDelta) -> bool:
            taken.append(delta.text)
            return True

        buffer.on_read = lambda: buffer.put(TextDelta(0, "a", (1,)))
        stream.listen(put)
        stream.listen(put)
        assert taken == ["a"]

    run(use)
