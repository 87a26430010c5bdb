"""The requests of the benchmarks on a GPU: prompts of random ids, and tokens of each answer."""

from random import Random

IDS = 10_000  # prompts use ids below it
Script = tuple[list[list[int]], list[int]]


def script(seed: int = 0) -> Script:
    """nano-vLLM's: 256 requests of 100 to 1,024 tokens in and out."""
    draw = Random(seed)
    prompts = [drawn(draw, draw.randint(100, 1024)) for _ in range(256)]
    return prompts, [draw.randint(100, 1024) for _ in range(256)]


def shared(seed: int = 1) -> Script:
    """64 groups of 16 requests, each with a prefix of its own, in a mixed order."""
    draw = Random(seed)
    prefixes = (drawn(draw, 1024) for _ in range(64))
    prompts = [prefix + drawn(draw, 256) for prefix in prefixes for _ in range(16)]
    draw.shuffle(prompts)
    return prompts, [128] * len(prompts)


def crowd(seed: int = 0) -> Script:
    """1,024 requests of 64 to 128 tokens in, and 128 to 256 out."""
    draw = Random(seed)
    prompts = [drawn(draw, draw.randint(64, 128)) for _ in range(1024)]
    return prompts, [draw.randint(128, 256) for _ in range(1024)]


def batch(seed: int = 0) -> Script:
    """512 requests of 64 tokens in and 256 out."""
    draw = Random(seed)
    return [drawn(draw, 64) for _ in range(512)], [256] * 512


def thousand(requests: int, seed: int = 0) -> Script:
    """1,000 tokens in and 1,000 out each."""
    draw = Random(seed)
    return [drawn(draw, 1000) for _ in range(requests)], [1000] * requests


def drawn(draw: Random, count: int) -> list[int]:
    return [draw.randint(0, IDS) for _ in range(count)]
