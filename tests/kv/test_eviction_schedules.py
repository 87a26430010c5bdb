"""Random schedules in which idle blocks are reused in the order of sessions."""

from collections import Counter

import pytest

from tests.property.schedules import Drive
from tests.seeds import seeds

KINDS = [{}, {"stateful": True}, {"remote": True}, {"stateful": True, "remote": True}]


@pytest.mark.parametrize("kinds", KINDS, ids=str)
def test_blocks_are_evicted_in_the_order_of_sessions(kinds: dict[str, bool]) -> None:
    seen = Counter[str]()
    ordered = (Drive(seed, **kinds) for seed in seeds(12))
    for drive in ordered:
        if drive.settings.get("eviction") == "sessions":
            seen += drive.run().seen
    assert seen
