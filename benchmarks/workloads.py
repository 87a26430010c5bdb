"""Seeded lists of requests, the same for every scheduler that is measured."""

import random
from dataclasses import dataclass

FAKE_TOKEN = 7  # what the model that is not there samples; end tokens are ignored, so nothing stops


@dataclass(frozen=True, slots=True)
class Work:
    """One request: a prompt, and how many tokens are generated after it."""

    prompt: list[int]
    max_tokens: int


def uniform(requests: int, prompt: int, out: int, vocab: int = 32000, seed: int = 0) -> list[Work]:
    """Prompts of one length that share nothing."""
    draw = random.Random(seed)
    return [Work([draw.randrange(3, vocab) for _ in range(prompt)], out) for _ in range(requests)]


def steady(requests: int) -> list[Work]:
    """Prompts of 512 tokens, and more output than any measurement waits for."""
    return uniform(requests, prompt=512, out=1024)


def pressure() -> list[Work]:
    """512 tokens in and 512 out: twice the memory at the end that it takes at the start."""
    return uniform(256, prompt=512, out=512)


def pressure_long() -> list[Work]:
    """128 tokens in and 1,024 out: nine times the memory at the end."""
    return uniform(256, prompt=128, out=1024)


def churn(
    requests: int = 2000,
    groups: int = 64,
    shared: int = 1024,
    own: int = 256,
    out: int = 32,
    vocab: int = 32000,
    seed: int = 0,
) -> list[Work]:
    """Short answers to prompts that begin with one of `groups` shared prefixes, shuffled."""
    draw = random.Random(seed)
    prefixes = [[draw.randrange(3, vocab) for _ in range(shared)] for _ in range(groups)]
    group = [index % groups for index in range(requests)]
    draw.shuffle(group)
    return [
        Work(prefixes[index] + [draw.randrange(3, vocab) for _ in range(own)], out)
        for index in group
    ]


def nano(requests: int = 256, longest_prompt: int = 1024, longest_out: int = 1024) -> list[Work]:
    """Lengths from 100 up, in and out: the requests of nano-vLLM's own benchmark."""
    draw = random.Random(0)
    prompts = [
        [draw.randint(0, 10000) for _ in range(draw.randint(100, longest_prompt))]
        for _ in range(requests)
    ]
    return [Work(prompt, draw.randint(100, longest_out)) for prompt in prompts]


def waiting(running: int, queued: int, first: int = 64, rest: int = 64) -> list[Work]:
    """`running` steady requests, then `queued` ones, the first of which may be a long one."""
    head = uniform(min(queued, 1), first, out=16, seed=1)
    return steady(running) + head + uniform(max(queued - 1, 0), rest, out=16, seed=2)
