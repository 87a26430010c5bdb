"""Mistral's reasoning models: `[THINK]…[/THINK]`, as special tokens."""

from paceline.tools.reasoning_parser import ReasoningParser


class MistralReasoning(ReasoningParser):
    """The text between `[THINK]` and `[/THINK]`."""

    OPEN = "[THINK]"
    CLOSE = "[/THINK]"
    needs_special_tokens = True
