"""Requests on their way to the engine."""

from math import inf

from paceline.simulator.device.profile import FrontEndTerms
from paceline.simulator.requests import Coming, SimulatedRequest
from paceline.workloads.call import Segment


def request(name: str, at_s: float) -> SimulatedRequest:
    return SimulatedRequest(name, at_s, (Segment(name, 10),), 1)


def test_the_front_end_reads_one_after_the_other() -> None:
    terms = FrontEndTerms(request_s=1.0, prompt_token_s=0.1)
    requests = [request("b", 0.5), request("a", 0.0), request("c", 9.0)]
    coming = Coming(requests, terms)
    for number, one in enumerate(requests):
        coming.send(one.at_s, number)
    found: list[tuple[float, int]] = []
    while coming:
        at = coming.next_at
        assert coming.pop()[1] in (0, 1, 2)
        found.append((at, len(coming)))
    assert found == [(2.0, 2), (4.0, 1), (11.0, 0)]
    assert coming.next_at == inf
