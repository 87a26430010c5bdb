"""Hermes and Qwen: `<tool_call>{"name": "look", "arguments": {"q": 1}}</tool_call>`."""

from collections.abc import Sequence
from typing import Any

from paceline.tools.calls import Tool
from paceline.tools.parser import ToolParser
from paceline.tools.structure import calls_of, tag
from paceline.tools.text_reader import Waiting

BEGIN = "<tool_call>"
END = "</tool_call>"


class HermesParser(ToolParser):
    """Each call has its own pair of markers. A missing last marker is forgiven."""

    def rules(self) -> Waiting[None]:
        while (yield from self.content_until(BEGIN)):
            yield from self.reader.skip(BEGIN)
            if (yield from self.reader.space()) != "{":
                self.give_up()
            elif (yield from self.json_calls(",")):
                yield from self.reader.space()
                yield from self.reader.skip(END)
                self.reader.take()

    @classmethod
    def structure(
        cls, tools: Sequence[Tool], *, required: bool, parallel: bool, template: str
    ) -> dict[str, Any]:
        tags = [
            tag(f'{BEGIN}\n{{"name": "{tool.name}", "arguments": ', tool, f"}}\n{END}")
            for tool in tools
        ]
        return calls_of(BEGIN, "\n", tags, required=required, parallel=parallel)
