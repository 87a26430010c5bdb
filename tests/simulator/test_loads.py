"""Traces and synthetic loads as requests."""

import json
from math import inf
from pathlib import Path

import numpy as np
import pytest

from paceline.core.errors import ConfigError
from paceline.simulator.loads import Clients, Phase, SyntheticLoad, TraceLoad, arrivals
from paceline.simulator.requests import check
from paceline.workloads.call import LengthDistribution


def test_a_trace_is_cut_and_made_faster(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    rows = [{"at_s": at, "input_len": 50, "output_len": at} for at in range(4)]
    path.write_text("\n".join(map(json.dumps, rows)))
    found = TraceLoad(path, 3, 2.0, 20, 1, Clients({"a": 1}, 9.0)).workload()
    assert [one.at_s for one in found.requests] == [0.0, 0.5, 1.0]
    assert [one.output_len for one in found.requests] == [1, 1, 1]
    assert {(one.input_len, one.tenant, one.leaves_after_s) for one in found.requests} == {
        (20, "a", 9.0)
    }


def test_conversations_repeat_what_was_said() -> None:
    clients = Clients({"a": 3, "b": 1})
    load = SyntheticLoad(
        50, turns=LengthDistribution("even", 2, 2), prefix_len=100, prefixes=3, clients=clients
    )
    found = load.workload().requests
    check(found)
    first, second = found[0], found[1]
    assert second.follows == 0
    assert (first.input_len, second.input_len) == (128, 128 + 64 + 128)
    assert isinstance(first.content, tuple)
    assert isinstance(second.content, tuple)
    assert second.content[: len(first.content)] == first.content
    assert len({one.content[0] for one in found if isinstance(one.content, tuple)}) == 3
    assert all(one.tenant == found[one.follows].tenant for one in found if one.follows >= 0)
    assert 50 < sum(one.tenant == "a" for one in found) < 100
    assert load.workload().requests[7].at_s == found[7].at_s, "the seed decides"


def test_rates_and_bursts() -> None:
    random = np.random.default_rng(0)
    even = arrivals((Phase(5.0),), 1000, 1.0, random)
    assert even[-1] == pytest.approx(200, rel=0.1)
    times = arrivals(Phase.parse("1:10,50:10"), 1020, 1.0, random)
    calm = np.sum((times % 20) < 10)
    assert calm == pytest.approx(20, abs=15)
    assert np.all(np.diff(times) >= 0)


def test_a_workload_at_another_rate() -> None:
    load = SyntheticLoad(30, (Phase(2.0),), turns=LengthDistribution("even", 1, 3)).workload()
    assert load.at_rate(8.0).rate == pytest.approx(8.0)


@pytest.mark.parametrize("text", ["", "fast", "0", "5:x", "inf", "1:-3"])
def test_what_is_no_rate(text: str) -> None:
    with pytest.raises(ConfigError, match="rate"):
        Phase.parse(text)


def test_several_rates_need_their_times() -> None:
    with pytest.raises(ConfigError, match="needs its seconds"):
        SyntheticLoad(5, Phase.parse("1,2:10")).workload()
    assert Phase.parse("3") == (Phase(3.0, inf),)


def test_a_load_that_would_take_ages_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text('{"at_s": 0, "input_len": 1, "output_len": 1}\n' * 2)
    slow = SyntheticLoad(3, (Phase(1e-300),))
    pauses = SyntheticLoad(2, turns=LengthDistribution("even", 3, 3), think_s=1e300)
    for load in (slow, pauses):
        with pytest.raises(ConfigError, match=r"e\+\d+ s; the longest load is 1e\+10 s"):
            load.workload()
    assert len(TraceLoad(path, speed=1e-300).workload().requests) == 2, "all come at 0 s"


def test_a_load_without_its_bursts() -> None:
    load = SyntheticLoad(9, burstiness=0.1, turns=LengthDistribution("even", 2, 2)).workload()
    even = load.evenly()
    first = [one.at_s for one in even.requests if one.follows < 0]
    assert np.diff(first) == pytest.approx((first[-1] - first[0]) / 8)
    assert even.rate == pytest.approx(load.rate)
    pauses = [[one.at_s for one in of.requests if one.follows >= 0] for of in (load, even)]
    assert pauses[0] == pauses[1]
    assert load.most_within(1e9) == 9
    assert even.most_within(0.5 * (first[1] - first[0])) == 1
