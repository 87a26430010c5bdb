"""Which positions groups of layers read."""

import numpy as np
import pytest

from paceline.core.errors import ConfigError
from paceline.core.settings.config import CacheConfig
from paceline.core.settings.features import AttentionGroup, attention_groups

FULL = AttentionGroup()
WINDOW = AttentionGroup("sliding_window", 4)
CHUNK = AttentionGroup("chunked_local", 8)


@pytest.mark.parametrize(
    ("group", "computed", "unread"),
    [
        (FULL, 100, 0),
        (WINDOW, 3, 0),
        (WINDOW, 4, 1),
        (WINDOW, 7, 4),  # position 7 reads 4, 5, 6 and itself
        (AttentionGroup("sliding_window", 1), 7, 7),
        (CHUNK, 7, 0),
        (CHUNK, 8, 8),
        (CHUNK, 17, 16),
    ],
)
def test_a_position_reads_what_its_kind_of_attention_reads(
    group: AttentionGroup, computed: int, unread: int
) -> None:
    assert group.unread(computed) == unread
    assert group.unread(np.array([computed, 0], np.int32)).tolist() == [unread, 0]


def test_groups_come_from_plain_data_too() -> None:
    given = [{"kind": "sliding_window", "window": 4}, FULL]
    assert attention_groups(given) == (WINDOW, FULL)
    assert attention_groups([one.to_dict() for one in (FULL, WINDOW, CHUNK)]) == (
        FULL,
        WINDOW,
        CHUNK,
    )


def test_groups_of_a_kind_are_numbered_one_by_one() -> None:
    several = AttentionGroup("sliding_window", 4, count=3)
    assert CacheConfig(attention_groups=(FULL, several)).groups == (FULL, several, several, several)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"kind": "sliding_window"}, "sliding_window attention group is 0; it must be positive"),
        ({"kind": "full", "window": 8}, "full attention group is 8; it must be 0"),
        ({"kind": "sparse", "window": 8}, "is 'sparse'; choose one of full, sliding_window"),
        ({"count": 0}, "count is 0; it must be positive"),
        ({"window": "8"}, "window is '8'; it must be of type int"),
        ({"size": 8}, "attention_groups is"),
        (8, "attention_groups is"),
    ],
)
def test_a_group_that_cannot_be_is_refused(given: object, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        attention_groups([given])
