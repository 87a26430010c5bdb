"""The figures of the benchmark of arrivals."""

from array import array

from benchmarks.arrivals import CHARACTERS, prompts_of, spread
from benchmarks.raw_client import Load, RawStream


def test_gaps_are_those_that_end_in_the_span() -> None:
    streams = [RawStream(4, reads=array("d", times)) for times in ([0, 1, 3, 6], [2, 2.5, 9])]
    assert spread(Load(streams, 0.0), 1.5, 7.0) == {"p50_ms": 2000, "p99_ms": 3000, "max_ms": 3000}


def test_no_two_prompts_begin_alike() -> None:
    bodies = [script[0].body for run in (0, 1) for script in prompts_of(100, run)]
    heads = {body.partition(b'"prompt": "')[2][:8] for body in bodies}
    assert len(heads) == 200
    assert min(map(len, bodies)) > CHARACTERS
