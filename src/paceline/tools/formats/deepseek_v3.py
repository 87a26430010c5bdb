"""DeepSeek V3 and R1, with JSON in a block of code, and V3.1, with JSON alone."""

from collections.abc import Sequence
from typing import Any

from paceline.tools.calls import Tool
from paceline.tools.json_call import stream_object
from paceline.tools.parser import ToolParser
from paceline.tools.structure import separated, tag, triggered
from paceline.tools.text_reader import Waiting

CALLS, CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL, CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
SEPARATOR = "<｜tool▁sep｜>"
BLOCK, BLOCK_END = "```json\n", "\n```"
KIND = "function"  # stands before the separator where the name stands behind it


class DeepseekV3Parser(ToolParser):
    """All calls stand between two markers, and each between two others."""

    def rules(self) -> Waiting[None]:
        while marker := (yield from self.content_until(CALLS, CALL)):
            yield from self.reader.skip(marker)
            if marker == CALLS:
                yield from self.reader.space()
                if not (yield from self.reader.skip(CALL)):
                    self.give_up()
                    continue
            while (yield from self._call()):
                yield from self.reader.space()
                if not (yield from self.reader.skip(CALL)):
                    yield from self.reader.skip(CALLS_END)
                    self.reader.take()
                    break

    def _call(self) -> Waiting[bool]:
        name = (yield from self.reader.until("<\n")).strip()
        separated = yield from self.reader.skip(SEPARATOR)
        in_block = separated and (yield from self.reader.peek()) != "{"
        if in_block:
            name = (yield from self.reader.until("\n")).strip()
            yield from self.reader.skip("\n")
            yield from self.reader.skip(BLOCK)
        if not (name and separated) or (yield from self.reader.space()) != "{":
            self.give_up()
            return False
        self.reader.take()
        self.begin(name)
        yield from stream_object(self.reader, self)
        if in_block:
            yield from self.reader.skip(BLOCK_END)
        yield from self.reader.space()
        yield from self.reader.skip(CALL_END)
        self.reader.take()
        return True

    @classmethod
    def structure(
        cls, tools: Sequence[Tool], *, required: bool, parallel: bool, template: str
    ) -> dict[str, Any]:
        in_block = BLOCK.strip() in template
        tags = [
            tag(f"{CALL}{KIND}{SEPARATOR}{tool.name}\n{BLOCK}", tool, f"{BLOCK_END}{CALL_END}")
            if in_block
            else tag(f"{CALL}{tool.name}{SEPARATOR}", tool, CALL_END)
            for tool in tools
        ]
        calls = separated("\n" if in_block else "", tags, parallel=parallel)
        listed = {"type": "tag", "begin": CALLS, "content": calls, "end": CALLS_END}
        return listed if required else triggered(CALLS, [listed], parallel=False)
