"""Runs a request in the engine and writes the response, whole or as a stream."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from time import monotonic
from typing import Any, Protocol

from fastapi import Response
from starlette.types import Receive, Scope, Send

from paceline.core.errors import PacelineError
from paceline.engine.api import (
    EngineFailed,
    GenerationRequest,
    RequestOutput,
    SamplingParams,
    Stream,
    TextDelta,
)
from paceline.server.client_headers import ID, ClientHeaders
from paceline.server.context import ServerContext
from paceline.server.errors import (
    GATEWAY_TIMEOUT,
    ApiError,
    ErrorBody,
    api_error_of,
)
from paceline.server.telemetry.request_log import UNREAD, RequestLogEntry

JSON = b"application/json"
EVENTS = b"text/event-stream; charset=utf-8"
LONG_ANSWER = 4096  # tokens and alternatives; to write more takes many milliseconds

StreamDelta = tuple[int, TextDelta]  # the index of a stream, and its new text


class ResponseWriter(Protocol):
    """Writes a response in the form of one route; each method returns bytes to send."""

    def opening(self, streams: Sequence[Stream]) -> bytes: ...

    def delta(self, part: int, delta: TextDelta) -> bytes: ...

    def closing(self, outputs: Sequence[RequestOutput]) -> bytes: ...

    def failing(self, error: ErrorBody) -> bytes: ...

    def whole(self, outputs: Sequence[RequestOutput]) -> bytes: ...


@dataclass(frozen=True, slots=True)
class GenerationJob:
    """One HTTP request: its headers, its id, what to generate, and how to write the response."""

    client: ClientHeaders
    name: str
    generations: Sequence[GenerationRequest]
    writer: ResponseWriter
    stream: bool


class GenerationResponse(Response):
    """Closes every stream of the engine and logs one entry, whatever happens.

    The status is sent with the first delta, so that a request that fails before it has the status
    of its error.
    """

    def __init__(self, context: ServerContext, job: GenerationJob) -> None:
        super().__init__()
        self._context, self._job = context, job
        self._streams: list[Stream] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await until(hung_up(receive), self._answer(scope, send))

    async def _answer(self, scope: Scope, send: Send) -> None:
        job, streams = self._job, self._streams
        scope.setdefault("state", {})[ID] = job.client.request_id  # errors are sent elsewhere
        entry = RequestLogEntry(
            job.name, scope["path"], stream=job.stream, trace_id=job.client.trace_id
        )
        entry.tenant = job.generations[0].tenant
        begun = monotonic()
        try:
            with self._context.opened(job.name, len(job.generations)):
                generations = await self._context.ready(job.name, job.generations)
                entry.prompt_tokens = sum(
                    len(generation.prompt_token_ids or ()) for generation in generations
                )
                streams += await self._context.started(job.name, generations)
                await (self._send_stream(send, entry) if job.stream else self._send_whole(send))
            entry.account(self._outputs())
            self._context.rate.ended()
        except BaseException as error:
            if streams and all(stream.output for stream in streams):
                entry.account(self._outputs())
            entry.end_by(error, unread=UNREAD in scope.get("state", ()))
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
        params = self._job.generations[0].params
        prompts = sum(output.usage.prompt_tokens for output in outputs)
        tokens = sum(output.usage.completion_tokens for output in outputs)
        body = await self._written(weight(params, prompts, tokens), self._job.writer.whole, outputs)
        await self._start(send, JSON, (b"content-length", str(len(body)).encode()))
        await send({"type": "http.response.body", "body": body})

    # -- streamed -----------------------------------------------------------

    async def _send_stream(self, send: Send, entry: RequestLogEntry) -> None:
        writer, entry.completion_tokens = self._job.writer, 0
        async with aclosing(merged(self._streams)) as deltas:
            first = await self._first(deltas)
            await self._start(send, EVENTS, (b"cache-control", b"no-cache"))
            body = [writer.opening(self._streams), *[await self._delta(*one) for one in first]]
            await self._send_event(send, b"".join(body))
            entry.completion_tokens += sum(len(delta.token_ids) for _, delta in first)
            try:
                async for part, delta in deltas:
                    entry.completion_tokens += len(delta.token_ids)
                    if body := await self._delta(part, delta):
                        await self._send_event(send, body)
                outputs = self._outputs()
                self._check(outputs)
                last = writer.closing(outputs)
            except PacelineError as error:
                last = writer.failing(api_error_of(error).body)
        await self._send_event(send, last)
        await send({"type": "http.response.body", "body": b""})

    async def _delta(self, part: int, delta: TextDelta) -> bytes:
        params = self._job.generations[part].params
        size = weight(params, len(delta.prompt_logprobs or ()), len(delta.token_ids))
        return await self._written(size, self._job.writer.delta, part, delta)

    async def _written(self, size: int, write: Callable[..., bytes], *given: Any) -> bytes:
        """Write on a thread if there is much to write."""
        if size <= LONG_ANSWER:
            return write(*given)
        return await self._context.long_work.run(write, *given)

    async def _first(self, deltas: AsyncGenerator[StreamDelta, None]) -> list[StreamDelta]:
        """Deltas up to the first with content; raises the error if there is none."""
        silent: list[StreamDelta] = []
        async for part, delta in deltas:
            silent.append((part, delta))
            if delta.token_ids or delta.finish_reason not in ("error", "timeout", "abort"):
                return silent
        self._check(self._outputs())
        return silent

    async def _send_event(self, send: Send, body: bytes) -> None:
        await send({"type": "http.response.body", "body": body, "more_body": True})

    async def _start(self, send: Send, kind: bytes, header: tuple[bytes, bytes]) -> None:
        own = (b"x-request-id", self._job.client.request_id.encode())
        headers = [(b"content-type", kind), own, header]
        await send({"type": "http.response.start", "status": 200, "headers": headers})

    def _check(self, outputs: Sequence[RequestOutput]) -> None:
        """Raise the error of a failed part. A request that was cut short is an error only if it
        has no token: an empty answer would look like success, and clients would not retry."""
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
        assert all(found), "a stream ended without its output"
        return [output for output in found if output is not None]


def weight(params: SamplingParams, prompt: int, output: int) -> int:
    """The number of tokens to write, each with its alternatives."""
    scored = 0 if params.prompt_logprobs is None else prompt * (1 + params.prompt_logprobs)
    return scored + output * (1 + (params.logprobs or 0))


async def merged(streams: Sequence[Stream]) -> AsyncGenerator[StreamDelta, None]:
    """The deltas of all streams as they arrive, each with the index of its stream."""
    if len(streams) == 1:
        async for delta in streams[0]:
            yield 0, delta
        return
    ready: asyncio.Queue[StreamDelta | Exception | None] = asyncio.Queue(1)  # None: one has ended
    tasks = [asyncio.create_task(forward(at, one, ready)) for at, one in enumerate(streams)]
    try:
        running = len(tasks)
        while running:
            match await ready.get():
                case None:
                    running -= 1
                case Exception() as error:
                    raise error
                case delta:
                    yield delta
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def forward(
    part: int, stream: Stream, ready: "asyncio.Queue[StreamDelta | Exception | None]"
) -> None:
    """Put the deltas of a stream into the queue, and its end or its error."""
    try:
        async for delta in stream:
            await ready.put((part, delta))
    except Exception as error:  # noqa: BLE001 - the reader of the queue raises it
        await ready.put(error)
    else:
        await ready.put(None)


async def until(end: Coroutine[Any, Any, None], job: Coroutine[Any, Any, None]) -> None:
    """Run the work until it is done, or until `end` returns."""
    working = asyncio.create_task(job)
    tasks = [working, asyncio.create_task(end)]
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
