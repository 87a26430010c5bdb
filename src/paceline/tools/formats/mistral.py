"""Mistral: `[TOOL_CALLS] [{"name": "look", "arguments": {"q": 1}}]`, and newer models
`[TOOL_CALLS]look[ARGS]{"q": 1}`."""

from collections.abc import Sequence
from typing import Any

from paceline.tools.calls import Tool, short_call_id
from paceline.tools.json_call import stream_object
from paceline.tools.parser import ToolParser
from paceline.tools.structure import calls_of, separated, tag, triggered
from paceline.tools.text_reader import Waiting

CALLS = "[TOOL_CALLS]"
ID = "[CALL_ID]"
ARGUMENTS = "[ARGS]"


class MistralParser(ToolParser):
    """The list holds all calls behind one marker; in the newer form each call has its own."""

    needs_special_tokens = True

    def new_id(self) -> str:
        return short_call_id()

    def rules(self) -> Waiting[None]:
        while (yield from self.content_until(CALLS)):
            yield from self.reader.skip(CALLS)
            match (yield from self.reader.space()):
                case "[":
                    yield from self._list()
                case "{":
                    yield from self.json_calls(",")
                case _:
                    yield from self._named()

    def _list(self) -> Waiting[None]:
        self.reader.at += 1
        if (yield from self.reader.space()) != "{":
            self.give_up()
        elif (yield from self.json_calls(",")):
            yield from self.reader.space()
            yield from self.reader.skip("]")
            self.reader.take()

    def _named(self) -> Waiting[None]:
        """Read a name, perhaps an id, and the arguments."""
        name = (yield from self.reader.until("[{ \n")).strip()
        id = None
        if (yield from self.reader.skip(ID)):
            id = yield from self.reader.until("[{ \n")
        yield from self.reader.skip(ARGUMENTS)
        if (yield from self.reader.space()) != "{" or not name:
            self.give_up()
            return
        self.reader.take()
        self.begin(name, id or None)
        yield from stream_object(self.reader, self)

    @classmethod
    def structure(
        cls, tools: Sequence[Tool], *, required: bool, parallel: bool, template: str
    ) -> dict[str, Any]:
        if ARGUMENTS in template:
            tags = [tag(f"{CALLS}{tool.name}{ARGUMENTS}", tool, "") for tool in tools]
            return calls_of(CALLS, "", tags, required=required, parallel=parallel)
        calls = [tag(f'{{"name": "{tool.name}", "arguments": ', tool, "}") for tool in tools]
        # The older templates differ in the space behind the marker.
        begin = f"{CALLS} [" if f"{CALLS} [" in template else f"{CALLS}["
        listed = {
            "type": "tag",
            "begin": begin,
            "content": separated(", ", calls, parallel=parallel),
            "end": "]",
        }
        return listed if required else triggered(CALLS, [listed], parallel=False)
