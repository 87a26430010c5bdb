"""Splits reasoning from the answer, in the formats of the models that write it."""

from dataclasses import replace
from typing import ClassVar

from paceline.tools.calls import ContentDelta, ReasoningDelta, Reply, ReplyDelta, joined, merged
from paceline.tools.parser import OutputParser, TextParser
from paceline.tools.text_reader import Waiting


class ReasoningParser(TextParser):
    """At most one block of reasoning, at the beginning of the text; the rest is content.

    Whitespace beside the markers belongs to them. A block that never ends is all reasoning.
    """

    OPEN: ClassVar[str] = "<think>"
    CLOSE: ClassVar[str] = "</think>"
    # Whether text without an opening marker begins in the block.
    begins_inside: ClassVar[bool] = False
    # Whether markers are special tokens, so that the text must be decoded with them.
    needs_special_tokens: ClassVar[bool] = False

    def __init__(self, prompt: str = "") -> None:
        """The end of the prompt tells whether a chat template has opened or closed the block."""
        super().__init__()
        written = prompt.rstrip()
        self._is_open = written.endswith(self.OPEN)
        self._is_closed = written.endswith(self.CLOSE)

    @property
    def markers(self) -> tuple[str, str] | None:
        """What begins and ends a block that may come; the first is empty if the text begins inside
        it. None: the block has ended."""
        if self._is_closed:
            return None
        return ("" if self._is_open or self.begins_inside else self.OPEN), self.CLOSE

    def rules(self) -> Waiting[None]:
        if (yield from self._begins()):
            yield from self._reasoning()
        yield from self._content()

    def _begins(self) -> Waiting[bool]:
        reader = self.reader
        if self._is_closed:
            return False
        yield from reader.space()
        opened = yield from reader.skip(self.OPEN)
        if not opened:
            reader.unread()
            if not self._is_open and not self.begins_inside:
                return False
        yield from reader.space()
        reader.take()
        return True

    def _reasoning(self) -> Waiting[None]:
        """Read the block, and the space after it."""
        reader, space, marker = self.reader, "", ""
        while not marker:
            marker = yield from reader.find((self.CLOSE,))
            text = space + reader.take()
            words = text if reader.ended and not marker else text.rstrip()
            space = text[len(words) :]
            if words:
                self.emit(ReasoningDelta(words))
            if reader.ended and not marker:
                return
        yield from reader.skip(marker)
        yield from reader.space()
        reader.take()

    def _content(self) -> Waiting[None]:
        reader = self.reader
        while (yield from reader.peek()):
            reader.read_all()
            begin, text = reader.taken, reader.take()
            self.emit(ContentDelta(text, begin, reader.taken))


class ReasoningThenCalls:
    """A parser for replies with reasoning first, and then content with tool calls."""

    def __init__(self, reasoning: OutputParser, calls: OutputParser) -> None:
        self._reasoning = reasoning
        self._calls = calls
        self._before: int | None = None  # characters before the content

    def push(self, text: str) -> list[ReplyDelta]:
        return self._passed(self._reasoning.push(text))

    def finish(self) -> list[ReplyDelta]:
        passed = self._passed(self._reasoning.finish())
        return merged([*passed, *self._shifted(self._calls.finish())])

    def whole(self, text: str) -> Reply:
        return joined([*self.push(text), *self.finish()])

    def _passed(self, deltas: list[ReplyDelta]) -> list[ReplyDelta]:
        """Content goes through the second parser."""
        passed: list[ReplyDelta] = []
        for delta in deltas:
            if isinstance(delta, ContentDelta):
                self._before = delta.begin if self._before is None else self._before
                passed += self._shifted(self._calls.push(delta.text))
            else:
                passed.append(delta)
        return passed

    def _shifted(self, deltas: list[ReplyDelta]) -> list[ReplyDelta]:
        """The second parser counts characters from where the content begins."""
        by = self._before or 0
        return [
            replace(one, begin=one.begin + by, end=one.end + by)
            if isinstance(one, ContentDelta)
            else one
            for one in deltas
        ]


class DeepseekR1Reasoning(ReasoningParser):
    """The text up to `</think>`; a `<think>` before it is optional."""

    begins_inside = True


class MistralReasoning(ReasoningParser):
    """The text between `[THINK]` and `[/THINK]`."""

    OPEN = "[THINK]"
    CLOSE = "[/THINK]"
    needs_special_tokens = True


class Qwen3Reasoning(ReasoningParser):
    """The text between `<think>` and `</think>`, unless the prompt ends with either of them."""
