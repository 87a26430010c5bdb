"""Qwen3-Coder: `<tool_call><function=look><parameter=q>1</parameter></function></tool_call>`."""

from collections.abc import Sequence
from typing import Any

from paceline.tools.calls import Tool
from paceline.tools.parser import ToolParser
from paceline.tools.structure import calls_of, tag
from paceline.tools.text_reader import Waiting

BEGIN, END = "<tool_call>", "</tool_call>"
FUNCTION, FUNCTION_END = "<function=", "</function>"
PARAMETER, PARAMETER_END = "<parameter=", "</parameter>"


class Qwen3CoderParser(ToolParser):
    """Each argument is text between markers. The markers around the function may be missing."""

    def rules(self) -> Waiting[None]:
        while marker := (yield from self.content_until(BEGIN, FUNCTION)):
            yield from self.reader.skip(marker)
            if marker == BEGIN:
                yield from self.reader.space()
                if not (yield from self.reader.skip(FUNCTION)):
                    self.give_up()
                    continue
            name = yield from self.reader.until("> \n")
            closed = yield from self.reader.skip(">")
            yield from self.reader.space()
            has_arguments = yield from self.reader.skip(PARAMETER)
            if not (name and closed) or not (
                has_arguments or (yield from self.reader.skip(FUNCTION_END))
            ):
                self.give_up()
                continue
            self.reader.take()
            yield from self._call(name, has_arguments)

    def _call(self, name: str, has_arguments: bool) -> Waiting[None]:
        self.begin(name)
        arguments, follows = self.written_arguments(name), has_arguments
        while follows:
            key = yield from self.reader.until(">")
            is_named = yield from self.reader.skip(">")
            self.reader.take()
            if not is_named or not (
                yield from arguments.value_until(self.reader, key, PARAMETER_END)
            ):
                return
            yield from self.reader.skip(PARAMETER_END)
            yield from self.reader.space()
            self.reader.take()
            follows = yield from self.reader.skip(PARAMETER)
        arguments.close()
        if has_arguments:
            yield from self.reader.skip(FUNCTION_END)
        yield from self.reader.space()
        yield from self.reader.skip(END)
        self.reader.take()

    @classmethod
    def structure(
        cls, tools: Sequence[Tool], *, required: bool, parallel: bool, template: str
    ) -> dict[str, Any]:
        tags = [
            tag(
                f"{BEGIN}\n{FUNCTION}{tool.name}>\n",
                tool,
                f"\n{FUNCTION_END}\n{END}",
                style="qwen_xml",
            )
            for tool in tools
        ]
        return calls_of(BEGIN, "\n", tags, required=required, parallel=parallel)
