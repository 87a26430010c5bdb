"""How one request uses its tools: what the template shows, what holds the model, what parses it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from paceline.tools.calls import (
    CallDelta,
    NamedTool,
    Tool,
    ToolChoice,
    call_id,
    read_choice,
    read_tools,
)
from paceline.tools.formats.json_calls import JsonCallParser
from paceline.tools.parser import OutputParser, TextParser, ToolParser
from paceline.tools.structure import (
    calls_schema,
    document,
    either,
    holdable,
    schema_format,
    structural_tag,
)
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


ANY_OBJECT = {"type": "object"}


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The tools of a request, the choice among them, and the format of the model's calls."""

    tools: tuple[Tool, ...]
    choice: ToolChoice
    format: type[ToolParser]
    parallel: bool = True
    template: str = ""  # the source of the chat template
    # Whether every call is held to its schema, though no tool is strict: a model whose template
    # does not show tools has not learned to write calls.
    is_held: bool = False

    @classmethod
    def read(
        cls,
        tools: Sequence[object] | None,
        choice: object,
        parallel: bool | None,
        format: type[ToolParser],
        template: str = "",
    ) -> "ToolUse":
        """The fields of a request, checked. RequestError if one is malformed."""
        known = read_tools(tools)
        return cls(known, read_choice(choice, known), format, parallel is not False, template)

    def held(self, parallel: bool | None) -> "ToolUse":
        """The same where the template shows no tools. One call at a time, unless the client asks
        for several: a model that has not learned to call would repeat the first."""
        return replace(self, is_held=True, parallel=parallel is True)

    def shown(self) -> list[dict[str, Any]] | None:
        """The tools for the chat template; None: it shows none."""
        if self.choice == "none" or not self.tools:
            return None
        return [tool.shown() for tool in self.tools]

    @property
    def needs_special_tokens(self) -> bool:
        """Whether the text must be decoded with special tokens."""
        return self.choice != "none" and self.format.needs_special_tokens

    def parser(self) -> OutputParser | None:
        """A parser for one choice; None: the text is content."""
        if self.choice == "none":
            return None
        if isinstance(self.choice, NamedTool) and self._structure() is None:
            return NamedCallParser(self.choice.name)
        held_to_json = self.choice == "required" and self._structure() is None
        parser = JsonCallParser if held_to_json else self.format
        return parser(self.tools, parallel=self.parallel)

    def calls_or(self, schema: Any) -> dict[str, Any] | None:
        """Calls or a document, where the request asks for one and calls are left to the model. As
        a `response_format`; None: calls of this format cannot be held beside it."""
        calls = self._calls(required=True) if self.choice == "auto" else None
        # Arguments in another style are held by one library alone: the document is what was asked.
        if calls is None or any("style" in tag["content"] for tag in calls.get("tags", ())):
            return None
        return structural_tag(either(calls, document(schema)))

    def constraint(self) -> dict[str, Any] | None:
        """What a grammar must hold the text to, as a `response_format`; None: nothing."""
        structure = self._structure()
        if structure is not None:
            return structural_tag(structure)
        held = self._schema()
        return held and schema_format("tool_calls", held)

    def _structure(self) -> dict[str, Any] | None:
        """A structural tag: for a choice that asks for a call, and where calls are held."""
        if self.choice == "none" or (self.choice == "auto" and not self._holds_calls()):
            return None
        return self._calls(required=self.choice != "auto")

    def _calls(self, *, required: bool) -> dict[str, Any] | None:
        return self.format.structure(
            self._callable(),
            required=required,
            parallel=self.parallel and not isinstance(self.choice, NamedTool),
            template=self.template,
        )

    def _schema(self) -> dict[str, Any] | None:
        """A schema, where the format has no markers; with `auto`, text must be possible too."""
        match self.choice:
            case "none" | "auto":
                return None
            case "required":
                return calls_schema(self.tools, parallel=self.parallel)
            case NamedTool():
                return dict(self._callable()[0].schema)

    def _callable(self) -> list[Tool]:
        """The tools that the model may call, with what their arguments are held to."""
        if isinstance(self.choice, NamedTool):
            return [tool for tool in self.tools if tool.name == self.choice.name]
        if self.choice == "required":
            return list(self.tools)
        return [tool if tool.strict else self._loose(tool) for tool in self.tools]

    def _loose(self, tool: Tool) -> Tool:
        """A tool whose arguments need not match all of its schema, so that none is refused."""
        return replace(tool, parameters=holdable(tool.schema) if self.is_held else ANY_OBJECT)

    def _holds_calls(self) -> bool:
        return self.is_held or any(tool.strict for tool in self.tools)
