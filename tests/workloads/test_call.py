"""Calls that are cut to a length."""

from paceline.workloads.call import Call, Segment

CALL = Call(2.0, (Segment("a", 512), Segment("b", 88)), 40)


def test_a_call_is_cut_at_the_end_of_its_prompt() -> None:
    assert CALL.input_len == 600
    assert CALL.cut(1000, 1000) == CALL
    assert CALL.cut(520, 8) == Call(2.0, (Segment("a", 512), Segment("b", 8)), 8)
    assert CALL.cut(512, 40).segments == (Segment("a", 512),)
    assert CALL.cut(100, 40).segments == (Segment("a", 100),)
