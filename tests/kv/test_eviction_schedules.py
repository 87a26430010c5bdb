"""Random schedules in which idle blocks are reused in the order of sessions."""

from itertools import cycle

from tests.property.schedules import Drive
from tests.seeds import seeds

KINDS = [{}, {"stateful": True}, {"remote": True}, {"stateful": True, "remote": True}]


def test_blocks_are_evicted_in_the_order_of_sessions() -> None:
    """Seeds choose the order of eviction themselves, whatever the kind of the schedule."""
    ordered = [seed for seed in seeds(24) if Drive(seed).settings.get("eviction") == "sessions"]
    assert len(ordered) > 2 * len(KINDS)
    for seed, kinds in zip(ordered, cycle(KINDS), strict=False):
        drive = Drive(seed, **kinds)
        assert drive.settings["eviction"] == "sessions"
        assert drive.run().seen
