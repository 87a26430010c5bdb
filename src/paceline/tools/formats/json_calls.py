"""JSON without markers: an object with "name" and "arguments", or an array of them."""

from paceline.tools.parser import ToolParser
from paceline.tools.text_reader import Waiting


class JsonCallParser(ToolParser):
    """For models that write calls in no format of their own, and for replies that a schema holds.

    An object is a call only if it names a known tool and has arguments.
    """

    def rules(self) -> Waiting[None]:
        while marker := (yield from self.content_until("{", "[")):
            if marker == "[":
                yield from self.reader.skip(marker)
                if (yield from self.reader.space()) != "{":
                    self.give_up()
                    continue
            if (yield from self.json_calls(",", bare=True)) and marker == "[":
                yield from self.reader.space()
                yield from self.reader.skip("]")
                self.reader.take()
