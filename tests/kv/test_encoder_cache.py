"""Embeddings that are kept: who holds them, and which go first."""

from random import Random

import pytest

from paceline.kv.encoder_cache import EncoderCache


def filled(capacity: int, **lengths: int) -> EncoderCache:
    cache = EncoderCache(capacity)
    for name, length in lengths.items():
        cache.add(name, length, step=1)
    cache.check()
    return cache


def test_the_one_that_has_been_unheld_for_longest_goes_first() -> None:
    cache = filled(6, a=2, b=2, c=2)
    cache.hold("a")
    cache.drop("a")  # now the newest
    cache.add("d", 2, step=2)
    assert [name in cache for name in "abcd"] == [True, False, True, True]
    cache.add("e", 3, step=3)
    assert [name in cache for name in "acde"] == [False, False, True, True]


def test_what_is_held_stays() -> None:
    cache = filled(4, a=2, b=2)
    cache.hold("a")
    cache.hold("a")
    cache.drop("a")
    assert cache.room == 2
    assert cache.is_held("a")
    cache.add("c", 2, step=2)
    assert "a" in cache
    assert "b" not in cache


def test_rows_are_those_of_no_other_item() -> None:
    cache = filled(5, a=2, b=3)
    rows = {name: set(cache[name].rows.tolist()) for name in "ab"}
    assert rows["a"] | rows["b"] == set(range(5))
    cache.hold("b")
    assert set(cache.add("c", 2, step=2).tolist()) == rows["a"]


def test_what_a_void_step_was_to_encode_goes_at_once_or_with_its_holder() -> None:
    cache = filled(6, a=1, b=2, c=3)
    cache.confirm("a", step=1)
    cache.confirm("c", step=2)  # another step encoded something of that name
    cache.hold("b")
    cache.retract()
    assert [name in cache for name in "abc"] == [True, True, False]
    cache.drop("b")
    assert "b" not in cache
    cache.check()


def test_images_are_forgotten_unless_they_are_held() -> None:
    cache = filled(6, a=1, b=2, c=3)
    cache.hold("b")
    for name in ("a", "b", "unknown"):
        cache.forget(name)
    assert [name in cache for name in "abc"] == [False, True, True]
    cache.clear()
    assert [name in cache for name in "abc"] == [False, True, False]
    cache.check()


def test_a_content_is_encoded_once() -> None:
    with pytest.raises(AssertionError, match="encoded twice"):
        filled(6, a=1).add("a", 1, step=2)


@pytest.mark.parametrize("seed", range(20))
def test_it_keeps_what_a_plain_list_would_keep(seed: int) -> None:
    """The list has every image, those that were dropped last at its end."""
    random = Random(seed)
    capacity = random.randint(4, 12)
    cache, kept = EncoderCache(capacity), list[str]()
    holders, lengths = dict[str, int](), {name: 1 + ord(name) % 4 for name in "abcdefgh"}
    for step in range(200):
        name = random.choice(list(lengths))
        if name not in kept:
            held = sum(lengths[one] for one in kept if holders[one])
            if held + lengths[name] > capacity:
                continue
            while sum(lengths[one] for one in kept) + lengths[name] > capacity:
                kept.remove(next(one for one in kept if not holders[one]))
            kept.append(name)
            holders[name] = 0
            cache.add(name, lengths[name], step)
        elif holders[name] and random.random() < 0.6:
            holders[name] -= 1
            cache.drop(name)
            if not holders[name]:
                kept.remove(name)
                kept.append(name)
        else:
            holders[name] += 1
            cache.hold(name)
        cache.check()
        assert [one in cache for one in lengths] == [one in kept for one in lengths]
        assert cache.held == sum(lengths[one] for one in kept if holders[one])
