"""Llama 3: `{"name": "look", "parameters": {"q": 1}}`, several with `;` between them."""

from collections.abc import Sequence
from typing import Any

from paceline.tools.calls import Tool
from paceline.tools.parser import ToolParser
from paceline.tools.structure import calls_of, tag
from paceline.tools.text_reader import Waiting

PYTHON_TAG = "<|python_tag|>"
BEGIN = '{"name": "'


class Llama3JsonParser(ToolParser):
    """The marker `<|python_tag|>` may stand before the calls, but rarely does."""

    def rules(self) -> Waiting[None]:
        while marker := (yield from self.content_until("{", PYTHON_TAG)):
            is_marked = marker == PYTHON_TAG
            if is_marked:
                yield from self.reader.skip(PYTHON_TAG)
                if (yield from self.reader.space()) != "{":
                    self.give_up()
                    continue
            yield from self.json_calls(";,", bare=not is_marked)

    @classmethod
    def structure(
        cls, tools: Sequence[Tool], *, required: bool, parallel: bool, template: str
    ) -> dict[str, Any]:
        tags = [tag(f'{BEGIN}{tool.name}", "parameters": ', tool, "}") for tool in tools]
        return calls_of(BEGIN, "; ", tags, required=required, parallel=parallel)
