"""GLM 4.5 and later: `<tool_call>look<arg_key>q</arg_key><arg_value>1</arg_value></tool_call>`."""

from collections.abc import Sequence
from typing import Any

from paceline.tools.calls import Tool
from paceline.tools.parser import ToolParser
from paceline.tools.structure import calls_of, tag
from paceline.tools.text_reader import Waiting

BEGIN, END = "<tool_call>", "</tool_call>"
KEY, KEY_END = "<arg_key>", "</arg_key>"
VALUE, VALUE_END = "<arg_value>", "</arg_value>"


class Glm45Parser(ToolParser):
    """Keys and values are text, each between its own markers."""

    def rules(self) -> Waiting[None]:
        while (yield from self.content_until(BEGIN)):
            yield from self.reader.skip(BEGIN)
            yield from self.reader.space()
            name = yield from self.reader.until("< \n{")
            yield from self.reader.space()
            has_arguments = yield from self.reader.skip(KEY)
            if not name or not (has_arguments or (yield from self.reader.skip(END))):
                self.give_up()
                continue
            self.reader.take()
            yield from self._call(name, has_arguments)

    def _call(self, name: str, has_arguments: bool) -> Waiting[None]:
        self.begin(name)
        arguments, follows = self.written_arguments(name), has_arguments
        while follows:
            key = (yield from self.reader.until("<")).strip()
            yield from self.reader.skip(KEY_END)
            yield from self.reader.space()
            is_named = yield from self.reader.skip(VALUE)
            self.reader.take()
            if not is_named or not (yield from arguments.value_until(self.reader, key, VALUE_END)):
                return
            yield from self.reader.skip(VALUE_END)
            yield from self.reader.space()
            self.reader.take()
            follows = yield from self.reader.skip(KEY)
        arguments.close()
        if has_arguments:
            yield from self.reader.skip(END)
        self.reader.take()

    @classmethod
    def structure(
        cls, tools: Sequence[Tool], *, required: bool, parallel: bool, template: str
    ) -> dict[str, Any]:
        tags = [tag(f"{BEGIN}{tool.name}\n", tool, f"\n{END}", style="glm_xml") for tool in tools]
        return calls_of(BEGIN, "\n", tags, required=required, parallel=parallel)
