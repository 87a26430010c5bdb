"""The reader's end of one request: deltas are passed on, or wait, joined, until they are read."""

import logging
from asyncio import CancelledError, Event
from collections.abc import AsyncIterator, Callable
from weakref import finalize

from paceline.core.arrays import I32
from paceline.core.errors import PacelineError, RequestError
from paceline.engine.api import RequestOutput, TextDelta

log = logging.getLogger(__name__)

Listener = Callable[[TextDelta], bool]  # returns whether it took the delta


class DeltaBuffer:
    """Holds at most one delta per choice: a new delta is joined to one that was not read yet.

    So a slow reader costs no more memory than the text it has not read. A listener gets each delta
    at once, unless one waits that it did not take.
    """

    def __init__(self) -> None:
        self.output: RequestOutput | None = None
        self.error: PacelineError | None = None
        self.closed = False  # by the reader
        self.on_read: Callable[[], None] | None = None  # called before the first delta is read
        self._listener: Listener | None = None
        self._pieces: dict[int, TextDelta] = {}
        self._news = Event()
        self._end = Event()

    def put(self, delta: TextDelta) -> None:
        if self._listener is not None and not self._pieces:
            try:
                if self._listener(delta):
                    return
            except Exception:  # the other requests of the delivery go on
                log.exception("a listener failed, and is called no more")
                self._listener = None
        earlier = self._pieces.get(delta.index)
        self._pieces[delta.index] = delta if earlier is None else earlier.followed_by(delta)
        self._news.set()

    def close(self, output: RequestOutput) -> None:
        self.output = output
        self._news.set()
        self._end.set()

    def refuse(self, error: PacelineError) -> None:
        self.error = error
        self._news.set()
        self._end.set()

    @property
    def ended(self) -> bool:
        """Whether the request has ended."""
        return self.output is not None or self.error is not None

    def listen(self, listener: Listener) -> None:
        self._start_reading()
        self._listener = listener
        for index in [*self._pieces]:
            if not listener(self._pieces[index]):
                break
            del self._pieces[index]

    def shut(self) -> None:
        """The reader has closed the stream."""
        self.closed = True
        self._listener = None
        self._news.set()
        self._end.set()

    async def take(self) -> TextDelta | None:
        """The next delta, in the order in which choices got text; None at the end."""
        self._start_reading()
        while not (self._pieces or self._end.is_set()):
            self._news.clear()
            await self._news.wait()
        if self.error is not None:
            raise self.error
        if self.closed or not self._pieces:
            return None
        return self._pieces.pop(next(iter(self._pieces)))

    def _start_reading(self) -> None:
        if self.on_read is not None:
            on_read, self.on_read = self.on_read, None
            on_read()

    async def end(self) -> RequestOutput | None:
        await self._end.wait()
        if self.error is not None:
            raise self.error
        return self.output


class DeltaStream:
    """See `api.Stream`. A stream that is left before its end calls `abort` once."""

    def __init__(
        self,
        request_id: str,
        prompt: I32,
        buffer: DeltaBuffer,
        abort: Callable[[str], None],
    ) -> None:
        self.request_id = request_id
        self._prompt, self._mailbox = prompt, buffer
        self._leave = finalize(self, leave, request_id, buffer, abort)
        self._leave.atexit = False

    @property
    def prompt_tokens(self) -> int:
        return len(self._prompt)

    @property
    def prompt_token_ids(self) -> tuple[int, ...]:
        return tuple(self._prompt.tolist())

    @property
    def output(self) -> RequestOutput | None:
        return self._mailbox.output

    def __aiter__(self) -> AsyncIterator[TextDelta]:
        return self

    async def __anext__(self) -> TextDelta:
        try:
            delta = await self._mailbox.take()
        except CancelledError:
            await self.aclose()
            raise
        if delta is None:
            await self.aclose()
            raise StopAsyncIteration
        return delta

    async def whole(self) -> RequestOutput:
        try:
            output = await self._mailbox.end()
        except CancelledError:
            await self.aclose()
            raise
        if output is None:
            raise RequestError(
                f"the stream of request {self.request_id!r} was closed before its end; "
                "read it to the end, or call whole() before aclose()"
            )
        await self.aclose()
        return output

    def listen(self, put: Listener) -> None:
        self._mailbox.listen(put)

    async def aclose(self) -> None:
        """Abort the request if it has not ended."""
        self._leave()
        self._mailbox.shut()


def leave(request_id: str, buffer: DeltaBuffer, abort: Callable[[str], None]) -> None:
    """Abort the request, unless it has ended: another request may have its id then."""
    if not buffer.ended:
        abort(request_id)
