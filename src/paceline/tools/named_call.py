"""Reads a reply that is nothing but the arguments of one call."""

from paceline.tools.calls import CallDelta, call_id
from paceline.tools.parser import TextParser
from paceline.tools.text_reader import Waiting


class NamedCallParser(TextParser):
    """For a choice of one tool whose arguments a schema holds. Whitespace around them is left
    out."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def rules(self) -> Waiting[None]:
        reader, space = self.reader, ""
        first = yield from reader.space()
        reader.take()
        if not first:
            return
        self.emit(CallDelta(0, "", call_id(), self._name))
        while (yield from reader.peek()):
            reader.read_all()
            text = space + reader.take()
            words = text.rstrip()
            space = text[len(words) :]
            if words:
                self.emit(CallDelta(0, words))
