"""What parsers of tool calls and of reasoning have in common."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Protocol

from paceline.tools.calls import (
    CallDelta,
    ContentDelta,
    Reply,
    ReplyDelta,
    Tool,
    call_id,
    joined,
    merged,
)
from paceline.tools.json_call import JsonCall
from paceline.tools.text_reader import TextReader, Waiting
from paceline.tools.written_arguments import WrittenArguments

log = logging.getLogger(__name__)


class OutputParser(Protocol):
    """Splits the text of one choice into content, reasoning and tool calls.

    Every split of a text into pieces gives deltas that add up to the same reply. Text is withheld
    only while it is not clear what it belongs to.
    """

    def push(self, text: str) -> list[ReplyDelta]:
        """Add text, and return what is new for certain."""
        ...

    def finish(self) -> list[ReplyDelta]:
        """End the text, and return what was withheld."""
        ...

    def whole(self, text: str) -> Reply:
        """Parse a complete text, on a parser that has read nothing."""
        ...


class TextParser(ABC):
    """A parser whose grammar is a generator: `rules` reads text and emits deltas.

    Text that the rules leave behind is content, also if they fail.
    """

    def __init__(self) -> None:
        self.reader = TextReader()
        self._new: list[ReplyDelta] = []
        self._running = self.rules()

    @abstractmethod
    def rules(self) -> Waiting[None]:
        """Read the text to its end. Run once; each `yield` waits for more text."""

    def emit(self, delta: ReplyDelta) -> None:
        self._new.append(delta)

    def push(self, text: str) -> list[ReplyDelta]:
        self.reader.add(text)
        return self._run()

    def finish(self) -> list[ReplyDelta]:
        self.reader.ended = True
        return self._run()

    def whole(self, text: str) -> Reply:
        return joined([*self.push(text), *self.finish()])

    def _run(self) -> list[ReplyDelta]:
        try:
            next(self._running)
        except StopIteration:
            self.leave()
        except Exception:
            log.exception("%s failed; the text is passed on as content", type(self).__name__)
            self.leave()
        new, self._new = self._new, []
        return merged(new)

    def leave(self, space: str = "") -> None:
        """Pass on what the rules did not take, after `space` that they withheld."""
        self.reader.read_all()
        if rest := space + self.reader.take():
            end = self.reader.taken
            self.emit(ContentDelta(rest, end - len(rest), end))


class ToolParser(TextParser):
    """Finds tool calls in text. What is not a call stays content, word for word.

    Whitespace around calls belongs to them: it is content only between words of the content.
    """

    # Whether markers are special tokens, so that the text must be decoded with them.
    needs_special_tokens: ClassVar[bool] = False

    def __init__(self, tools: Iterable[Tool] = (), *, parallel: bool = True) -> None:
        """`tools`: text without a marker is a call only if it names one of these; none: any name.

        Without `parallel`, calls after the first are left out.
        """
        super().__init__()
        self._schemas = {tool.name: tool.schema for tool in tools}
        self._parallel = parallel
        self._count = 0  # calls so far
        self._space = ""  # whitespace that is content if a word follows
        self._after_call = False

    @classmethod
    def structure(
        cls, tools: Sequence[Tool], *, required: bool, parallel: bool, template: str
    ) -> dict[str, Any] | None:
        """A format of xgrammar's structural tags that holds calls to their schemas.

        None: the format has no markers, and a JSON schema does it. `template` is the source of the
        chat template, for formats of several forms.
        """
        return None

    def new_id(self) -> str:
        return call_id()

    def begin(self, name: str, id: str | None = None) -> None:
        self._count += 1
        self._after_call = True
        if self._is_reported():
            self.emit(CallDelta(self._count - 1, "", id or self.new_id(), name))

    def arguments(self, text: str) -> None:
        if self._is_reported():
            self.emit(CallDelta(self._count - 1, text))

    def written_arguments(self, name: str) -> WrittenArguments:
        """The arguments of a call that begins, where the model does not write them as JSON."""
        return WrittenArguments(self.arguments, self._schemas.get(name, {}))

    def content(self, text: str) -> None:
        is_apart = self._after_call  # from the whitespace before the call
        if is_apart:
            text = text.lstrip()
        if not text:
            return
        self._after_call = False
        words = text.rstrip()
        if words:
            begin = self.reader.taken - len(text)
            end = begin + len(words)
            begin -= 0 if is_apart else len(self._space)
            self.emit(ContentDelta(self._space + words, begin, end))
            self._space = ""
        self._space += text[len(words) :]

    def content_until(self, *markers: str) -> Waiting[str]:
        """Read content, and return the marker that ends it; "" at the end of the text."""
        while True:
            marker = yield from self.reader.find(markers)
            self.content(self.reader.take())
            if marker:
                return marker
            if self.reader.ended:
                self._end()
                return ""

    def give_up(self) -> None:
        """What was read is not a call."""
        self.content(self.reader.take())

    def json_calls(self, separators: str, *, bare: bool = False) -> Waiting[bool]:
        """Read calls from a brace on. False: the first one is none, and was made content."""
        if not (yield from self._json_call(bare)):
            self.give_up()
            return False
        while True:
            self.reader.take()
            following = yield from self.reader.space()
            if following and following in separators:
                self.reader.at += 1
                following = yield from self.reader.space()
            if following != "{":
                self.reader.unread()
                return True
            if not (yield from self._json_call(bare)):
                self.give_up()
                return True

    def _json_call(self, bare: bool) -> Waiting[bool]:
        return JsonCall(self.reader, self, self._is_known if bare else bool, bare).read()

    def _is_known(self, name: str) -> bool:
        return not self._schemas or name in self._schemas

    def _is_reported(self) -> bool:
        return self._parallel or self._count == 1

    def _end(self) -> None:
        if self._space and not self._count:
            end = self.reader.taken
            self.emit(ContentDelta(self._space, end - len(self._space), end))
        self._space = ""

    def leave(self, space: str = "") -> None:
        super().leave(space + self._space)
        self._space = ""
