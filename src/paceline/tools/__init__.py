"""Tool definitions, and parsers that find tool calls and reasoning in the text of a model."""
