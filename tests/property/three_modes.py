"""What SGLang's tests of determinism ask of an engine: their modes single, prefix and radix.

Each returns the answers by what was asked, which must be one answer each: tokens and their
log-probabilities.
"""

from collections import defaultdict
from random import Random
from typing import Any

from benchmarks.gpu_invariant import scored
from paceline import LLM

Answers = dict[Any, set[tuple[tuple[int, float], ...]]]


def answers(llm: LLM, prompts: list[list[int]], tokens: int) -> list[tuple[tuple[int, float], ...]]:
    return [tuple(one) for one in scored(llm, prompts, [tokens] * len(prompts))]


def single(llm: LLM, prompt: list[int], most: int, tokens: int) -> Answers:
    """The same prompt in batches of 1 up to `most`."""
    found: Answers = defaultdict(set)
    for count in range(1, most + 1):
        found["prompt"] |= {*answers(llm, [prompt] * count, tokens)}
    return found


def prefix(llm: LLM, text: list[int], lengths: list[int], turns: int, tokens: int) -> Answers:
    """Beginnings of a text in batches of random mixtures."""
    found, random = Answers(), Random(0)
    for _ in range(turns):
        batch = [random.choice(lengths) for _ in range(random.randint(2, 6))]
        for length, one in zip(batch, answers(llm, [text[:n] for n in batch], tokens), strict=True):
            found.setdefault(length, set()).add(one)
    return found


def radix(llm: LLM, prompt: list[int], cuts: list[int], tokens: int) -> Answers:
    """An answer, and its end after each cut, where the rest is part of the prompt: computed with a
    cold cache, and found in a warm one."""
    (whole,) = answers(llm, [prompt], tokens)
    found: Answers = {cut: {whole[cut:]} for cut in cuts}
    for cut in cuts:
        begun = prompt + [token for token, _ in whole[:cut]]
        llm.reset_prefix_cache()
        for _ in range(2):
            found[cut] |= {*answers(llm, [begun], tokens - cut)}
    return found


def all_modes(llm: LLM, length: int, tokens: int) -> dict[str, Answers]:
    """Of prompts of up to so many random tokens."""
    random = Random(1)
    text = [random.randint(3, 50) for _ in range(length)]
    return {
        "single": single(llm, text[: length // 2], 6, tokens),
        "prefix": prefix(llm, text, [1, length // 4 - 1, length // 2, length], 4, tokens),
        "radix": radix(llm, text[: length // 2], [1, tokens // 2, tokens - 1], tokens),
    }
