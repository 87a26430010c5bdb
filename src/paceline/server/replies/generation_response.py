"""Runs a request in the engine and writes the response, whole or as a stream."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any

from fastapi import Response
from starlette.types import Receive, Scope, Send

from paceline.core.errors import TOO_LATE, PacelineError
from paceline.core.sampling import ServiceLevel
from paceline.engine.api import (
    EngineFailed,
    GenerationRequest,
    RequestOutput,
    SamplingParams,
    Stream,
    TokenizedPrompt,
)
from paceline.server.client_headers import ID, TENANT, ClientHeaders
from paceline.server.context import ServerContext
from paceline.server.errors import GATEWAY_TIMEOUT, UNAVAILABLE, ApiError, api_error_of
from paceline.server.replies.event_stream import EventStream
from paceline.server.replies.reply_parsing import PLAIN_REPLY, ReplyParsing
from paceline.server.replies.response_writer import (
    ResponseWriter,
    WholeWriter,
    body_writer,
    weight,
    written,
)
from paceline.server.telemetry.request_log import UNREAD, RequestLogEntry

JSON = b"application/json"
EVENTS = b"text/event-stream; charset=utf-8"
READ_AT_ONCE = 32  # prompts of a request; to ask for more would block other requests


@dataclass(frozen=True, slots=True)
class GenerationJob:
    """One HTTP request: its headers, its id, what to generate, and how to write the response.

    `reply` holds the output constraint. `ending` is awaited when the response is written, before
    its end is sent.
    """

    client: ClientHeaders
    name: str
    generations: Sequence[GenerationRequest]
    writer: ResponseWriter | WholeWriter
    stream: bool
    reply: ReplyParsing = PLAIN_REPLY
    ending: Callable[[], Awaitable[None]] | None = None


class GenerationResponse(Response):
    """Closes every stream of the engine and logs one entry, whatever happens.

    The status is sent with the first delta, so that a request that fails before it has the status
    of its error.
    """

    def __init__(self, context: ServerContext, job: GenerationJob) -> None:
        super().__init__()
        self._context, self._job = context, job
        self._streams: list[Stream] = []
        self._tenant = ""  # whose API key the client has; "": a key does not say

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await until(hung_up(receive), self.answer(scope, send))

    async def answer(self, scope: Scope, send: Send) -> None:
        """Send the response, whether or not the client is still there."""
        job, streams = self._job, self._streams
        scope.setdefault("state", {})[ID] = job.client.request_id  # errors are sent elsewhere
        entry = RequestLogEntry(
            job.name, scope["path"], stream=job.stream, trace_id=job.client.trace_id
        )
        self._tenant = scope["state"].get(TENANT, "")
        asked = job.generations[0].tenant
        entry.tenant = self._tenant or self._context.settings.tenant_without_key(asked)
        entry.session_id = job.client.session_id
        begun = monotonic()
        try:
            self._context.check_open()
            with self._context.open_requests.opened(job.name, len(job.generations)):
                generations = await self._ready(self._chosen_rank())
                entry.prompt_tokens = sum(
                    len(generation.prompt_token_ids or ()) for generation in generations
                )
                streams += await self._started(generations)
                if job.stream:
                    await self._send_stream(scope, send, entry)
                else:
                    await self._send_whole(send)
            self._account(entry)
            self._context.rate.ended()
        except BaseException as error:
            self._account(entry)
            entry.end_by(error, unread=UNREAD in scope.get("state", ()))
            raise
        finally:
            for stream in streams:
                await stream.aclose()
            entry.total_s = entry.total_s or round(monotonic() - begun, 6)
            entry.write()
            if self._context.tracing is not None:
                self._context.tracing.ended(job.client, job.generations[0].params, entry)

    # -- to the engine ------------------------------------------------------

    def _chosen_rank(self) -> int | None:
        """The engine that a client chose, if any. 503 if it is not there."""
        if (rank := self._job.client.chosen_rank) is not None:
            troubles = self._context.engine.troubles()
            if rank < len(troubles) and troubles[rank]:
                raise ApiError(UNAVAILABLE, f"engine {rank}: {troubles[rank]}", code="unhealthy")
        return rank

    async def _ready(self, rank: int | None) -> list[GenerationRequest]:
        """The requests as the engine gets them. Raises QueueFull if there is no room for them."""
        context, job = self._context, self._job
        context.engine.check_room(len(job.generations))
        level = job.client.level
        prompts = await self._prompts()
        params = await self._params(prompts)
        timeout, parts = context.settings.timeout_s or None, context.open_requests[job.name]
        origin = job.name if len(parts) > 1 else ""  # its prompts leave slots for others
        return [
            generation.ready(
                prompt,
                params=own if level is None else with_level(own, level),
                request_id=part,
                tenant=self._tenant or context.settings.tenant_without_key(generation.tenant),
                adapter=context.adapter(generation.adapter),
                timeout=generation.timeout or timeout,
                origin=origin,
                session=job.client.session_id,
                data_parallel_rank=rank,
            )
            for generation, prompt, own, part in zip(
                job.generations, prompts, params, parts, strict=True
            )
        ]

    async def _prompts(self) -> list[TokenizedPrompt]:
        found: list[TokenizedPrompt] = []
        generations = self._job.generations
        for start in range(0, len(generations), READ_AT_ONCE):
            some = generations[start : start + READ_AT_ONCE]
            found += await asyncio.gather(*map(self._context.tokenized, some))
        return found

    async def _params(self, prompts: Sequence[TokenizedPrompt]) -> list[SamplingParams]:
        """The parameters of each part, with what holds the model to its answer."""
        reply, params = self._job.reply, [one.params for one in self._job.generations]
        if not reply.may_hold(params[0]):
            return params
        return await self._context.long_work.run(held, reply, params, prompts)

    async def _started(self, generations: Sequence[GenerationRequest]) -> list[Stream]:
        """Start the parts, one after another.

        The server may close, or the request may be aborted, before all have started.
        """
        context, streams = self._context, list[Stream]()
        try:
            for generation in generations:
                await context.turnstile.enter()  # many parts would block other requests
                context.check_open()
                if self._job.name in context.open_requests.aborted_early:
                    problem = "the request was aborted before it started"
                    raise ApiError(UNAVAILABLE, problem, code="aborted")
                streams.append(context.engine.generate(generation))
        except BaseException:
            for stream in streams:
                await stream.aclose()
            raise
        return streams

    # -- whole --------------------------------------------------------------

    async def _send_whole(self, send: Send) -> None:
        outputs = await asyncio.gather(*(stream.whole() for stream in self._streams))
        self._check(outputs)
        params = self._job.generations[0].params
        prompts = sum(output.usage.prompt_tokens for output in outputs)
        tokens = sum(output.usage.completion_tokens for output in outputs)
        size, write = weight(params, prompts, tokens), self._job.writer.whole
        body = await written(self._context.long_work, size, write, outputs)
        await self._ending()
        await self._start(send, JSON, (b"content-length", str(len(body)).encode()))
        await send({"type": "http.response.body", "body": body})

    # -- streamed -----------------------------------------------------------

    async def _send_stream(self, scope: Scope, send: Send, entry: RequestLogEntry) -> None:
        job, streams, writer = self._job, self._streams, self._job.writer
        assert not isinstance(writer, WholeWriter), "this route does not stream"
        events = EventStream(writer, streams, job.generations[0].params, self._context.long_work)
        try:
            if not await events.begun():
                self._check(self._outputs())
            await self._start(send, EVENTS, (b"cache-control", b"no-cache"))
            body = body_writer(scope, send)
            try:
                outputs = await events.write_to(body)
                self._check(outputs)
                last = writer.closing(outputs)
                await self._ending()
            except (PacelineError, ApiError) as error:
                entry.end_by(error, unread=False)
                last = writer.failing(api_error_of(error).body)
            await body.drain()
            await send({"type": "http.response.body", "body": last})
        finally:
            events.close()
            entry.completion_tokens = events.tokens

    async def _ending(self) -> None:
        if (ending := self._job.ending) is not None:
            await ending()

    async def _start(self, send: Send, kind: bytes, header: tuple[bytes, bytes]) -> None:
        own = (b"x-request-id", self._job.client.request_id.encode())
        headers = [(b"content-type", kind), own, header]
        if load_format := self._job.client.load_format:
            report = await self._context.load_report.header(load_format)
            headers += [(b"endpoint-load-metrics", report)] if report else []
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
            if why == TOO_LATE:
                raise ApiError(UNAVAILABLE, why, code="overloaded")
            raise ApiError(GATEWAY_TIMEOUT, why, code="timeout")
        if all(answer.finish_reason == "abort" for answer in answers):
            self._context.check_open()

    def _account(self, entry: RequestLogEntry) -> None:
        """Add the figures of all parts; a part that was refused has none."""
        if self._streams and all(stream.output for stream in self._streams):
            entry.account(self._outputs())

    def _outputs(self) -> list[RequestOutput]:
        found = [stream.output for stream in self._streams]
        assert all(found), "a stream ended without its output"
        return [output for output in found if output is not None]


def with_level(params: SamplingParams, level: ServiceLevel) -> SamplingParams:
    """The targets of the headers, where the body has none."""
    own = ServiceLevel.of(params.slo)
    return replace(params, slo=level if own is None else own.filled(level))


def held(
    reply: ReplyParsing, params: Sequence[SamplingParams], prompts: Sequence[TokenizedPrompt]
) -> list[SamplingParams]:
    pairs = zip(params, prompts, strict=True)
    return [reply.held(one, prompt.token_ids) for one, prompt in pairs]


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
