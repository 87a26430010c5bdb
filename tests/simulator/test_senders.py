"""The clients of a load."""

from paceline.simulator.requests import SimulatedRequest
from paceline.simulator.senders import Senders
from paceline.workloads.call import Segment


def request(name: str, at_s: float, follows: int = -1) -> SimulatedRequest:
    return SimulatedRequest(name, at_s, (Segment(name, 10),), 1, follows=follows)


def test_a_turn_of_a_conversation_waits_for_the_one_before() -> None:
    senders = Senders([request("a", 0.0), request("b", 3.0, follows=0)])
    assert list(senders.first()) == [(0.0, 0)]
    assert list(senders.followers(0, 10.0)) == [(13.0, 1)]


def test_a_request_that_is_sent_again_arrived_the_first_time() -> None:
    senders = Senders([request("a", 1.0)])
    first = senders.build(0, 1.0)
    assert senders.request(0, 1.5) is first
    assert senders.request(0, 2.0).arrival == senders.log.arrival[0] == 1.0
