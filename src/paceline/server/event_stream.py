"""Turns the deltas of a request into server-sent events while they are delivered."""

from asyncio import Event, Future, gather
from collections.abc import Callable, Sequence
from functools import partial

from paceline.engine.api import RequestOutput, SamplingParams, Stream, TextDelta
from paceline.engine.long_work import LongWork
from paceline.server.body_writer import BodyWriter
from paceline.server.response_writer import LONG_ANSWER, ResponseWriter, weight
from paceline.server.schemas.ready_events import TextFrame, quoted

CUT_SHORT = ("error", "timeout", "abort")


class PartListener:
    """Writes the events of one stream that have only a text; `EventStream` writes all others.

    Every token passes here, so that it makes few calls.
    """

    __slots__ = ("_events", "_frames", "_part", "_write")

    def __init__(self, events: "EventStream", part: int, write: Callable[[bytes], bool]) -> None:
        self._events, self._part, self._write = events, part, write
        self._frames: dict[int, TextFrame] = {}  # by choice

    def put(self, delta: TextDelta) -> bool:
        events = self._events
        if (
            events.is_held
            or not delta.text
            or delta.finish_reason is not None
            or delta.logprobs is not None
            or not (frame := self._frames.get(delta.index) or self._frame(delta.index))
        ):
            return events.put(self._part, delta)
        events.tokens += len(delta.token_ids)
        try:
            event = frame.before + quoted(delta.text) + frame.after
        except Exception as error:  # noqa: BLE001 - it ends this response, not the delivery
            events.fail(error)
            return True
        if not self._write(event):
            events.hold()
        return True

    def _frame(self, index: int) -> TextFrame | None:
        if frame := self._events.writer.frame(self._part, index):
            self._frames[index] = frame
        return frame


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
        self.writer = writer
        self._early = [writer.opening(streams)]  # events before the response has started
        self._write: Callable[[bytes], bool] = partial(kept, self._early)
        self.is_held = self._has_content = False
        self._listeners: list[PartListener] = []
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
        parts = range(len(self._streams))
        self._waiting = dict.fromkeys(parts)
        self._listeners = [PartListener(self, part, body.write) for part in parts]
        self.is_held = True
        while self.is_held or not self._ends.done():
            if self.is_held:
                await body.drain()
                await self._resume()
            else:
                self._news.clear()
                await self._news.wait()
        self.is_held = True  # if one part has failed, the others continue until they are closed
        return await self._ends

    def close(self) -> None:
        """Take no further deltas."""
        self.is_held = True
        self._ends.cancel()
        self._listeners.clear()  # they refer back to it

    # -- inside a delivery --------------------------------------------------

    def _put_first(self, part: int, delta: TextDelta) -> bool:
        taken = self.put(part, delta)
        if taken and (delta.token_ids or delta.finish_reason not in CUT_SHORT):
            self._has_content = True
            self.hold()
        return taken

    def put(self, part: int, delta: TextDelta) -> bool:
        if self.is_held:
            self._waiting[part] = None
            return False
        self.tokens += len(delta.token_ids)
        if delta.logprobs is not None and self._is_long(delta):
            self._long = part, delta
            self.hold()
            return True
        try:
            event = self.writer.delta(part, delta)
        except Exception as error:  # noqa: BLE001 - it ends this response, not the delivery
            self.fail(error)
            return True
        if not self._write(event):
            self.hold()
        return True

    def _is_long(self, delta: TextDelta) -> bool:
        prompt, output = len(delta.prompt_logprobs or ()), len(delta.token_ids)
        return weight(self._params, prompt, output) > LONG_ANSWER

    def hold(self) -> None:
        """Take no deltas until the task of the response has had its turn."""
        self.is_held = True
        self._news.set()

    def fail(self, error: Exception) -> None:
        """End the response with an error that is not the client's."""
        self._error = error
        self.hold()

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
            event = await self._long_work.run(self.writer.delta, *self._long)
            self._long = None
            self._write(event)
            return
        self.is_held = False
        waiting, self._waiting = self._waiting, {}
        for part in waiting:
            self._streams[part].listen(self._listeners[part].put)


def kept(events: list[bytes], event: bytes) -> bool:
    """Keep an event for later. It can always take another one."""
    events.append(event)
    return True
