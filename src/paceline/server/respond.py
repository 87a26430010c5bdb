"""Asks the engine and answers the client, whole or in pieces, until either of them is gone."""

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from time import monotonic
from typing import Any, Protocol

from fastapi import Response
from starlette.types import Receive, Scope, Send

from paceline.core.errors import PacelineError
from paceline.engine.api import EngineFailed, GenerationRequest, RequestOutput, Stream, TextDelta
from paceline.server.client_headers import ClientHeaders
from paceline.server.context import ServerContext
from paceline.server.errors import (
    GATEWAY_TIMEOUT,
    ApiError,
    ErrorBody,
    api_error_of,
)
from paceline.server.telemetry.request_log import RequestLogEntry

JSON = b"application/json"
EVENTS = b"text/event-stream; charset=utf-8"

StreamDelta = tuple[int, TextDelta]  # the number of a stream, and what it says


class ResponseWriter(Protocol):
    """How an answer is written; each method gives bytes to send, which may be none."""

    def opening(self, streams: Sequence[Stream]) -> bytes: ...

    def delta(self, part: int, delta: TextDelta) -> bytes: ...

    def closing(self, outputs: Sequence[RequestOutput]) -> bytes: ...

    def failing(self, error: ErrorBody) -> bytes: ...

    def whole(self, outputs: Sequence[RequestOutput]) -> bytes: ...


@dataclass(frozen=True, slots=True)
class GenerationJob:
    """One HTTP request: who sent it, its name here, what is asked, how the answer is written."""

    client: ClientHeaders
    name: str
    generations: Sequence[GenerationRequest]
    writer: ResponseWriter
    stream: bool


class GenerationResponse(Response):
    """Whatever happens, each stream of the engine is closed and one line is logged.

    The status is sent with the first piece, so that a request which is refused late still gets
    the status of its refusal.
    """

    def __init__(self, context: ServerContext, job: GenerationJob) -> None:
        super().__init__()
        self._context, self._job = context, job
        self._streams: list[Stream] = []
        self._begun = self._done = 0  # writes of a stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        ends = [hung_up(receive), self._stall()] if self._job.stream else [hung_up(receive)]
        await until(ends, self._answer(scope["path"], send))

    async def _answer(self, path: str, send: Send) -> None:
        job, streams = self._job, self._streams
        entry = RequestLogEntry(job.name, path, stream=job.stream, trace_id=job.client.trace_id)
        entry.tenant = job.generations[0].tenant
        begun = monotonic()
        try:
            with self._context.opened(job.name, len(job.generations)):
                generations = await self._context.ready(job.name, job.generations)
                entry.prompt_tokens = sum(
                    len(generation.prompt_token_ids or ()) for generation in generations
                )
                for generation in generations:
                    streams.append(self._context.engine.generate(generation))
                await (self._send_stream(send, entry) if job.stream else self._send_whole(send))
            entry.account(self._outputs())
            self._context.rate.ended()
        except BaseException as error:
            if streams and all(stream.output for stream in streams):
                entry.account(self._outputs())
            entry.end_by(error, unread=self._begun > self._done)
            raise
        finally:
            for stream in streams:
                await stream.aclose()
            entry.total_s = entry.total_s or round(monotonic() - begun, 6)
            entry.write()
            if self._context.tracing is not None:
                self._context.tracing.ended(job.client, job.generations[0].params, entry)

    # -- whole --------------------------------------------------------------

    async def _send_whole(self, send: Send) -> None:
        outputs = await asyncio.gather(*(stream.whole() for stream in self._streams))
        self._check(outputs)
        body = self._job.writer.whole(outputs)
        await self._start(send, JSON, (b"content-length", str(len(body)).encode()))
        await send({"type": "http.response.body", "body": body})

    # -- in pieces ----------------------------------------------------------

    async def _send_stream(self, send: Send, entry: RequestLogEntry) -> None:
        writer, entry.completion_tokens = self._job.writer, 0
        async with aclosing(merged(self._streams)) as deltas:
            first = await self._first(deltas)
            await self._start(send, EVENTS, (b"cache-control", b"no-cache"))
            told = [writer.opening(self._streams), *(writer.delta(*one) for one in first)]
            await self._send_event(send, b"".join(told))
            entry.completion_tokens += sum(len(delta.token_ids) for _, delta in first)
            try:
                async for part, delta in deltas:
                    entry.completion_tokens += len(delta.token_ids)
                    if told := writer.delta(part, delta):
                        await self._send_event(send, told)
                outputs = self._outputs()
                self._check(outputs)
                last = writer.closing(outputs)
            except PacelineError as error:
                last = writer.failing(api_error_of(error).body)
        await self._send_event(send, last)
        await send({"type": "http.response.body", "body": b""})

    async def _first(self, deltas: AsyncGenerator[StreamDelta, None]) -> list[StreamDelta]:
        """Up to the first piece that says something; if none does, the status tells why."""
        silent: list[StreamDelta] = []
        async for part, delta in deltas:
            silent.append((part, delta))
            if delta.token_ids or delta.finish_reason not in ("error", "timeout", "abort"):
                return silent
        self._check(self._outputs())
        return silent

    async def _send_event(self, send: Send, body: bytes) -> None:
        self._begun += 1
        await send({"type": "http.response.body", "body": body, "more_body": True})
        self._done += 1

    async def _stall(self) -> None:
        """Ends when the client has read nothing for too long: one write outlasts a whole wait.

        A look now and then costs less than a timer for each write.
        """
        seen = -1
        while self._begun == self._done or self._begun != seen:
            seen = self._begun
            await asyncio.sleep(self._context.settings.unread_s)

    async def _start(self, send: Send, kind: bytes, header: tuple[bytes, bytes]) -> None:
        own = (b"x-request-id", self._job.client.request_id.encode())
        headers = [(b"content-type", kind), own, header]
        await send({"type": "http.response.start", "status": 200, "headers": headers})

    def _check(self, outputs: Sequence[RequestOutput]) -> None:
        """A part that failed fails the whole. Being cut is an answer only if something was said:
        an empty one looks like success, and is not asked for again elsewhere."""
        answers = [answer for output in outputs for answer in output.outputs]
        why = next((output.error for output in outputs if output.error), "")
        if any(answer.finish_reason == "error" for answer in answers):
            raise EngineFailed(why)
        if any(answer.token_ids for answer in answers):
            return
        if why:
            raise ApiError(GATEWAY_TIMEOUT, why, code="timeout")
        if all(answer.finish_reason == "abort" for answer in answers):
            self._context.check_open()

    def _outputs(self) -> list[RequestOutput]:
        found = [stream.output for stream in self._streams]
        assert all(found), "a stream has ended without its output"
        return [output for output in found if output is not None]


async def merged(streams: Sequence[Stream]) -> AsyncGenerator[StreamDelta, None]:
    """The pieces of all streams, each with the number of its stream, as they come."""
    if len(streams) == 1:
        async for delta in streams[0]:
            yield 0, delta
        return
    pending = {asyncio.create_task(following(stream)): at for at, stream in enumerate(streams)}
    try:
        while pending:
            done, _ = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                part = pending.pop(task)
                if (delta := task.result()) is not None:
                    pending[asyncio.create_task(following(streams[part]))] = part
                    yield part, delta
    finally:
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)


async def following(stream: Stream) -> TextDelta | None:
    try:
        return await stream.__anext__()
    except StopAsyncIteration:
        return None


async def until(ends: Sequence[Coroutine[Any, Any, None]], job: Coroutine[Any, Any, None]) -> None:
    """Do the work as long as none of the ends has come."""
    working = asyncio.create_task(job)
    tasks = [working, *map(asyncio.create_task, ends)]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    if not working.cancelled():
        working.result()


async def hung_up(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
