"""Differences in words."""

from paceline.sched.replay.fingerprint import listing


def test_a_description_names_only_some_of_many() -> None:
    assert listing(list("abcdef")) == "a, b, c, d and 2 more"
