"""What is remembered of a store, and for how long."""

import pytest

from paceline.kv.remote.block_files import FRESH_S, USED_S, KnownContent
from tests.kv.block_array import keys_of

KEYS = keys_of(1, 2, 3)


def test_content_is_known_up_to_the_first_that_is_missing() -> None:
    known = KnownContent()
    assert known.seek(KEYS[0])
    assert not known.seek(KEYS[0])  # it is being looked for
    known.found(KEYS, 2, now=10.0)
    assert known.leading(KEYS) == 2
    assert known.is_missing(KEYS[2], 10.0)
    assert not known.is_missing(KEYS[2], 10.0 + FRESH_S)
    assert known.seek(KEYS[0])
    known.add(KEYS[2:], 11.0)
    assert not known.is_missing(KEYS[2], 10.0)
    known.drop(KEYS[1:2])
    assert known.leading(KEYS) == 1
    known.clear()
    assert known.leading(KEYS) == 0


def test_the_use_of_content_is_noted_now_and_then() -> None:
    known = KnownContent()
    known.add(KEYS, 0.0)
    assert known.use(KEYS, 1.0) == ()
    assert known.use(KEYS[:1], USED_S) == KEYS[:1]
    assert known.use(KEYS, USED_S + 1.0) == KEYS[1:]


def test_the_oldest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.kv.remote.block_files.KNOWN", 2)
    known = KnownContent()
    known.add(KEYS, 0.0)
    assert known.leading(KEYS[:1]) == 0
    assert known.leading(KEYS[1:]) == 2
