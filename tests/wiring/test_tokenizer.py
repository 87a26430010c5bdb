"""Sampling rules of a model, from its tokenizer and the settings."""

import pytest

from paceline.core.errors import RequestError
from paceline.core.settings.load import LoadConfig
from paceline.engine.params import SamplingParams
from paceline.wiring.model_files import sampling_rules
from tests.engine.support import tokenizer


def test_a_limit_of_the_whole_vocabulary_allows_all_tokens() -> None:
    words = tokenizer()
    every = SamplingParams(logprobs=-1, prompt_logprobs=-1)
    for most in (-1, words.vocab_size, words.vocab_size + 9):
        sampling_rules(words, LoadConfig(max_logprobs=most)).check(every)
    fewer = sampling_rules(words, LoadConfig(max_logprobs=words.vocab_size - 1))
    with pytest.raises(RequestError, match="logprobs is -1"):
        fewer.check(every)
