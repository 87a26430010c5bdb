"""Calls that fit the tiny model of the test server, and samples without a server."""

from paceline.bench.client import Target
from paceline.bench.samples import Sample
from paceline.workloads.call import Call, Segment
from tests.server.support import MODEL

TARGET = Target(MODEL, "completions", vocab_size=300, seed=0, ignore_eos=True)


def call(number: int = 0, tokens: int = 12, output: int = 5, at_s: float = 0.0) -> Call:
    return Call(at_s, (Segment(f"{number}", tokens),), output)


def made_up() -> list[Sample]:
    return [
        Sample(0.0, 0.1 * n, (0.1 * n + 0.05, 0.1 * n + 0.2), 0.1 * n + 0.2, 8, 2) for n in range(9)
    ] + [Sample(0.0, 1.0, (), 1.5, 8, 0, "timeout")]
