"""Requests on their way to the engine."""

from math import inf

from paceline.simulate.coming import Coming
from paceline.simulate.profile import FrontEndTerms
from paceline.simulate.requests import SimulatedRequest
from paceline.workloads.call import Segment


def request(name: str, at_s: float, follows: int = -1) -> SimulatedRequest:
    return SimulatedRequest(name, at_s, (Segment(name, 10),), 1, follows=follows)


def test_the_front_end_reads_one_after_the_other() -> None:
    terms = FrontEndTerms(request_s=1.0, prompt_token_s=0.1)
    coming = Coming([request("b", 0.5), request("a", 0.0), request("c", 9.0)], terms)
    found: list[tuple[float, int]] = []
    while coming:
        at = coming.next_at
        assert coming.pop()[1] in (0, 1, 2)
        found.append((at, len(coming)))
    assert found == [(2.0, 2), (4.0, 1), (11.0, 0)]
    assert coming.next_at == inf


def test_a_turn_of_a_conversation_waits_for_the_one_before() -> None:
    coming = Coming([request("a", 0.0), request("b", 3.0, follows=0)], FrontEndTerms())
    assert coming.pop() == (0.0, 0)
    assert not coming
    coming.ended(0, 10.0)
    assert coming.next_at == 13.0
