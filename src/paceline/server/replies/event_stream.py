"""Turns the deltas of a request into server-sent events, with log-probabilities."""

from asyncio import Event, Future, gather
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from paceline.engine.api import RequestOutput, SamplingParams, Stream, TextDelta
from paceline.engine.long_work import LongWork
from paceline.server.replies.response_writer import LONG_ANSWER, BodyWriter, ResponseWriter, weight
from paceline.server.schemas.completions import ChatLogprob, chat_logprobs
from paceline.server.schemas.envelope import TextFrame, quoted
from paceline.text.detokenizer import Detokenizer, utf8_decoder
from paceline.text.tokenizer import Tokenizer
from paceline.tools.calls import ContentDelta

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


class TokenOffsets:
    """The offset of each token in a text, which grows by the characters that a token completes.

    A token that completes a character begins where the character begins. A token that is left out
    of the text adds nothing. `prompt` precedes the text, whose first token is at `at`.
    """

    def __init__(
        self, tokenizer: Tokenizer, skip_special: bool, prompt: Sequence[int] = (), at: int = 0
    ) -> None:
        self._detokenizer = Detokenizer(tokenizer, skip_special=skip_special, prompt=prompt)
        self._bytes = tokenizer.spelled(skip_special)
        self._at = at

    def of(self, ids: Iterable[int]) -> list[int]:
        """The offsets of the next tokens."""
        return [self._next(id) for id in ids]

    def _next(self, id: int) -> int:
        completed = len(self._detokenizer.push((id,)))
        own = len(utf8_decoder("replace").decode(self._bytes[id]))
        # A character beyond its own was begun by earlier tokens.
        begin = self._at + max(completed - own, 0)
        self._at += completed
        return begin


def echoed_offsets(tokenizer: Tokenizer, ids: Sequence[int], text: str, given: bool) -> list[int]:
    """The offsets of a prompt's tokens in `text`, which is the given text, or decoded from the ids.

    A text contains its special tokens; a given one has none that the tokenizer adds around it.
    """
    before, after = framing(tokenizer) if given else (0, 0)
    inner = TokenOffsets(tokenizer, skip_special=False).of(ids[before : len(ids) - after])
    return [min(at, len(text)) for at in (*[0] * before, *inner, *[len(text)] * after)]


def framing(tokenizer: Tokenizer) -> tuple[int, int]:
    """The number of special tokens that the tokenizer adds before and after a text."""
    framed, bare = tokenizer.encode("x"), tokenizer.encode("x", special=False)
    places = range(len(framed) - len(bare), -1, -1)
    before = next((at for at in places if framed[at : at + len(bare)] == bare), 0)
    return before, len(framed) - len(bare) - before


class MessageLogprobs:
    """Tokens wait until a parser has decided what their text is.

    A token belongs to a message if a part of its text does. Tokens of reasoning, of calls and of
    markers are left out.
    """

    def __init__(self, offsets: TokenOffsets) -> None:
        self._offsets = offsets
        self._waiting: deque[tuple[int, ChatLogprob]] = deque()  # with the offset of each token

    def add(self, delta: TextDelta) -> None:
        """The tokens of a delta, before its text is parsed."""
        if (found := chat_logprobs(delta.logprobs)) is not None:
            offsets = self._offsets.of(delta.token_ids)
            self._waiting.extend(zip(offsets, found.content, strict=True))

    def of(self, text: ContentDelta) -> list[ChatLogprob]:
        """The tokens of a text. Each is returned once, with the first text that it is part of."""
        waiting, found = self._waiting, list[ChatLogprob]()
        while len(waiting) > 1 and waiting[0][0] < text.begin and waiting[1][0] <= text.begin:
            waiting.popleft()
        while waiting and waiting[0][0] < text.end:
            found.append(waiting.popleft()[1])
        return found
