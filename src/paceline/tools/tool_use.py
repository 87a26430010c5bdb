"""How one request uses its tools: what the template shows, what holds the model, what parses it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from paceline.tools.definitions import NamedTool, Tool, ToolChoice, read_choice, read_tools
from paceline.tools.formats.json_calls import JsonCallParser
from paceline.tools.named_call import NamedCallParser
from paceline.tools.parser import OutputParser
from paceline.tools.structure import calls_schema, schema_format, structural_tag
from paceline.tools.tool_parser import ToolParser

ANY_OBJECT = {"type": "object"}


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The tools of a request, the choice among them, and the format of the model's calls."""

    tools: tuple[Tool, ...]
    choice: ToolChoice
    format: type[ToolParser]
    parallel: bool = True
    template: str = ""  # the source of the chat template

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

    def constraint(self) -> dict[str, Any] | None:
        """What a grammar must hold the text to, as a `response_format`; None: nothing."""
        structure = self._structure()
        if structure is not None:
            return structural_tag(structure)
        held = self._schema()
        return held and schema_format("tool_calls", held)

    def _structure(self) -> dict[str, Any] | None:
        """A structural tag: for a choice that asks for a call, and for strict tools."""
        if self.choice == "none" or (self.choice == "auto" and not self._has_strict()):
            return None
        return self.format.structure(
            self._callable(),
            required=self.choice != "auto",
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
        return [
            tool if tool.strict else replace(tool, parameters=ANY_OBJECT) for tool in self.tools
        ]

    def _has_strict(self) -> bool:
        return any(tool.strict for tool in self.tools)
