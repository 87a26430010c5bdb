"""Qwen3: it opens the block itself, or does not think."""

from paceline.tools.reasoning_parser import ReasoningParser


class Qwen3Reasoning(ReasoningParser):
    """The text between `<think>` and `</think>`, unless the prompt ends with either of them."""
