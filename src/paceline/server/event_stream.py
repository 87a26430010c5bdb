"""Turns the deltas of a request into server-sent events while they are delivered."""

from asyncio import Event, Future, gather
from collections.abc import Callable, Sequence
from functools import partial

from paceline.engine.api import RequestOutput, SamplingParams, Stream, TextDelta
from paceline.engine.long_work import LongWork
from paceline.server.body_writer import BodyWriter
from paceline.server.response_writer import LONG_ANSWER, ResponseWriter, weight

CUT_SHORT = ("error", "timeout", "abort")


class EventStream:
    """Events are written inside the delivery, in the order of their deltas, without a task.

    While it is held, deltas wait in their streams: from the first content until the response has
    started, while the client reads slowly, and while a thread writes a long event. The task of the
    response waits for these, and for the end.
    """

    def __init__(
        self,
        writer: ResponseWriter,
        streams: Sequence[Stream],
        params: SamplingParams,
        long_work: LongWork,
    ) -> None:
        self.tokens = 0  # of the deltas that were taken
        self._streams, self._params, self._long_work = streams, params, long_work
        self._event = writer.delta
        self._early = [writer.opening(streams)]  # events before the response has started
        self._write: Callable[[bytes], bool] = self._keep
        self._has_content = self._held = False
        self._waiting: dict[int, None] = {}  # streams with deltas that were not taken, in order
        self._long: tuple[int, TextDelta] | None = None  # a thread writes it
        self._error: Exception | None = None
        self._news = Event()  # it is held, or the request has ended
        self._ends: Future[list[RequestOutput]] = gather(*(one.whole() for one in streams))
        self._ends.add_done_callback(self._end)

    async def begun(self) -> bool:
        """Wait for the first content. False if the request has ended without any.

        Raises the error of a part that was refused.
        """
        for part, stream in enumerate(self._streams):
            stream.listen(partial(self._put_first, part))
        while not (self._has_content or self._ends.done()):
            self._news.clear()
            await self._news.wait()
        if not self._has_content:
            await self._ends
        return self._has_content

    async def write_to(self, body: BodyWriter) -> list[RequestOutput]:
        """Write the events of a response that has started; returns the outputs at the end."""
        body.write(b"".join(self._early))
        self._write = body.write
        self._waiting = dict.fromkeys(range(len(self._streams)))
        self._held = True
        while self._held or not self._ends.done():
            if self._held:
                await body.drain()
                await self._resume()
            else:
                self._news.clear()
                await self._news.wait()
        self._held = True  # if one part has failed, the others continue until they are closed
        return await self._ends

    def close(self) -> None:
        """Take no further deltas."""
        self._held = True
        self._ends.cancel()

    # -- inside a delivery --------------------------------------------------

    def _put_first(self, part: int, delta: TextDelta) -> bool:
        taken = self._put(part, delta)
        if taken and (delta.token_ids or delta.finish_reason not in CUT_SHORT):
            self._has_content = True
            self._hold()
        return taken

    def _put(self, part: int, delta: TextDelta) -> bool:
        if self._held:
            self._waiting[part] = None
            return False
        self.tokens += len(delta.token_ids)
        if delta.logprobs is not None and self._is_long(delta):
            self._long = part, delta
            self._hold()
            return True
        try:
            event = self._event(part, delta)
        except Exception as error:  # noqa: BLE001 - it ends this response, not the delivery
            self._error = error
            self._hold()
            return True
        if not self._write(event):
            self._hold()
        return True

    def _is_long(self, delta: TextDelta) -> bool:
        prompt, output = len(delta.prompt_logprobs or ()), len(delta.token_ids)
        return weight(self._params, prompt, output) > LONG_ANSWER

    def _keep(self, event: bytes) -> bool:
        self._early.append(event)
        return True

    def _hold(self) -> None:
        self._held = True
        self._news.set()

    def _end(self, ends: "Future[list[RequestOutput]]") -> None:
        if not ends.cancelled():
            ends.exception()  # an error that came after another one is not reported
        self._news.set()

    # -- in the task of the response ----------------------------------------

    async def _resume(self) -> None:
        """Write the event that was too long for a delivery, or take deltas again."""
        if self._error is not None:
            raise self._error
        if self._long is not None:
            event = await self._long_work.run(self._event, *self._long)
            self._long = None
            self._write(event)
            return
        self._held = False
        waiting, self._waiting = self._waiting, {}
        for part in waiting:
            self._streams[part].listen(partial(self._put, part))
