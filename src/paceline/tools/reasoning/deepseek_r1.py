"""DeepSeek R1: its chat template opens the block, so that the text begins inside it."""

from paceline.tools.reasoning_parser import ReasoningParser


class DeepseekR1Reasoning(ReasoningParser):
    """The text up to `</think>`; a `<think>` before it is optional."""

    begins_inside = True
