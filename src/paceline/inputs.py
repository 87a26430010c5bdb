"""Forms of prompts, under the module name that vLLM has."""

from paceline.engine.prompts import Prompt
from paceline.engine.vllm_forms import TextPrompt, TokensPrompt

PromptType = Prompt  # vLLM's name

__all__ = ["Prompt", "PromptType", "TextPrompt", "TokensPrompt"]
