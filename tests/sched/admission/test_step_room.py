"""What a step has left."""

from tests.sched.admission.support import room


def test_a_room_counts_what_limits_count_for_itself() -> None:
    one, other = room(), room()
    one.used["images"] = 3
    assert (other.used, other.gone) == ({}, ())
