"""What all parsers of a model's text have in common."""

import logging
from abc import ABC, abstractmethod
from typing import Protocol

from paceline.tools.calls import ContentDelta, Reply, ReplyDelta, joined, merged
from paceline.tools.text_reader import TextReader, Waiting

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
