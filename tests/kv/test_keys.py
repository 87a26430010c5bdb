"""Block keys: equal if and only if everything that determines the content is."""

import os
import sys
from hashlib import blake2b
from subprocess import run
from typing import Any

import numpy as np
import pytest

from paceline.core.multimodal import ImageInput
from paceline.core.request import Request
from paceline.kv import keys as module
from paceline.kv.keys import CHUNK_BLOCKS, KEY_BYTES, Keys, Stem, image_bytes, root_key
from tests.kept import kept

TOKENS = list(range(12))


def request(**fields: Any) -> Request:
    return Request("a", TOKENS, **fields)  # pyright: ignore[reportArgumentType]


def keys_of(tokens: list[int], size: int = 4, **fields: Any) -> list[bytes]:
    found: list[bytes] = []
    Keys(size).extend(found, request(**fields), np.array(tokens, np.int32))
    return found


def common(one: list[bytes], other: list[bytes]) -> int:
    """Leading keys that are equal; none may be equal after the first that differs."""
    same = [a == b for a, b in zip(one, other, strict=False)]
    length = same.index(False) if False in same else len(same)
    assert not any(same[length:]), "keys that differ chain to keys that do not"
    return length


# -- chaining ---------------------------------------------------------------


def test_only_full_blocks_have_a_key() -> None:
    assert [len(keys_of(TOKENS[:length])) for length in (0, 3, 4, 7, 8, 12)] == [0, 0, 1, 1, 2, 3]


def test_keys_have_a_fixed_length_and_name_content_alone() -> None:
    found = keys_of(TOKENS)
    assert all(type(key) is bytes and len(key) == KEY_BYTES for key in found)
    assert found == keys_of(TOKENS)
    other_in_all_that_does_not_matter = keys_of(
        TOKENS, tenant="t", priority=5, seed=3, max_tokens=7, stop_token_ids=(1,)
    )
    assert found == other_in_all_that_does_not_matter


def test_equal_blocks_at_different_places_have_different_keys() -> None:
    assert len(set(keys_of([1, 1, 1, 1] * 5))) == 5


def test_each_key_commits_to_its_whole_prefix() -> None:
    for place in range(12):
        changed = list(TOKENS)
        changed[place] += 100
        assert common(keys_of(TOKENS), keys_of(changed)) == place // 4


def test_the_order_of_tokens_matters() -> None:
    assert keys_of([1, 2, 3, 4]) != keys_of([2, 1, 3, 4])


def test_block_size_is_in_the_root_so_that_pools_never_mix_keys() -> None:
    assert root_key(4, "", "") != root_key(8, "", "")
    assert not set(keys_of(TOKENS * 2, size=4)) & set(keys_of(TOKENS * 2, size=8))


# -- growing ----------------------------------------------------------------


@pytest.mark.parametrize("steps", [[12], [4, 8, 12], [1, 3, 5, 6, 11, 12], list(range(13))])
def test_naming_bit_by_bit_gives_the_same_keys_as_in_one_go(steps: list[int]) -> None:
    images = (ImageInput("cat", 2, 3), ImageInput("dog", 9, 2))
    for fields in ({}, {"cache_salt": "s"}, {"adapter": "l"}, {"images": images}):
        found: list[bytes] = []
        names = Keys(4)
        for length in steps:
            names.extend(found, request(**fields), np.array(TOKENS[:length], np.int32))
            assert len(found) == length // 4
        assert found == keys_of(TOKENS, **fields)


def test_naming_again_adds_nothing() -> None:
    found, names = keys_of(TOKENS), Keys(4)
    again = list(found)
    names.extend(again, request(), np.array(TOKENS, np.int32))
    names.extend(again, request(), np.array(TOKENS[:5], np.int32))
    assert again == found


# -- what separates ---------------------------------------------------------


@pytest.mark.parametrize(
    "fields",
    [{"cache_salt": "pepper"}, {"adapter": "lora"}, {"cache_salt": "a", "adapter": "b"}],
    ids=str,
)
def test_another_salt_or_adapter_shares_no_block_at_all(fields: dict[str, str]) -> None:
    assert not set(keys_of(TOKENS)) & set(keys_of(TOKENS, **fields))
    assert keys_of(TOKENS, **fields) == keys_of(TOKENS, **fields)


def test_salt_adapter_and_model_are_not_confused() -> None:
    named = [("", ""), ("a", ""), ("", "a"), ("ab", ""), ("a", "b"), ("", "ab")]
    roots = {root_key(4, adapter, salt) for adapter, salt in named}
    roots |= {root_key(4, adapter, salt, "ab") for adapter, salt in named}
    assert len(roots) == 12


def test_another_model_shares_no_block_at_all() -> None:
    of_models = [list[bytes](), list[bytes](), list[bytes]()]
    for keys, model in zip(of_models, ("llama", "llama", "qwen"), strict=True):
        Keys(4, model).extend(keys, request(), np.array(TOKENS, np.int32))
    assert of_models[0] == of_models[1]
    assert not set(of_models[0]) & set(of_models[2])


def test_keys_are_the_same_in_every_process() -> None:
    images = "images=(ImageInput('cat', 2, 3),)"
    fields = f"adapter='lora', cache_salt='pepper', {images}"
    script = f"""
import numpy as np
from paceline.core.multimodal import ImageInput
from paceline.core.request import Request
from paceline.kv.keys import Keys
found = []
Keys(4, "llama").extend(found, Request("b", {TOKENS}, {fields}), np.array({TOKENS}, np.int32))
print(*[key.hex() for key in found])
"""
    seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    other = run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONHASHSEED": seed},
        capture_output=True,
        check=True,
        text=True,
    )
    here: list[bytes] = []
    asked = request(adapter="lora", cache_salt="pepper", images=(ImageInput("cat", 2, 3),))
    Keys(4, "llama").extend(here, asked, np.array(TOKENS, np.int32))
    assert other.stdout.split() == [key.hex() for key in here]


def test_the_root_is_that_of_the_request() -> None:
    names = Keys(4)
    assert names.root(request()) == root_key(4, "", "")
    assert names.root(request(adapter="l")) == root_key(4, "l", "")
    assert names.root(request(cache_salt="s")) == root_key(4, "", "s")


def test_names_in_any_language_are_taken() -> None:
    assert keys_of(TOKENS, cache_salt="соль") != keys_of(TOKENS, cache_salt="塩")


# -- images ------------------------------------------------------------------


def test_images_change_keys_from_the_block_they_begin_in() -> None:
    plain = keys_of(TOKENS)
    for offset in range(12):
        pictured = keys_of(TOKENS, images=(ImageInput("cat", offset, 1),))
        assert common(plain, pictured) == offset // 4


def test_another_image_at_the_same_place_is_another_content() -> None:
    cat, dog = (keys_of(TOKENS, images=(ImageInput(name, 4, 4),)) for name in ("cat", "dog"))
    assert common(cat, dog) == 1


def test_the_same_image_at_another_place_is_another_content() -> None:
    one, later = (keys_of([9] * 12, images=(ImageInput("cat", place, 2),)) for place in (4, 5))
    assert common(one, later) == 1


def test_an_image_covers_the_positions_from_its_offset_up_to_its_end_and_no_further() -> None:
    image = (ImageInput("cat", 4, 4),)
    covers = [bool(image_bytes(image, first, first + 4)) for first in (0, 4, 8)]
    assert covers == [False, True, False]
    wider = (ImageInput("cat", 3, 6),)
    assert all(image_bytes(wider, first, first + 4) for first in (0, 4, 8))


def test_an_image_is_placed_relative_to_the_block_also_when_it_began_before() -> None:
    image = (ImageInput("cat", 3, 6),)

    def place(first: int) -> int:
        return int.from_bytes(image_bytes(image, first, first + 4)[-8:], "little", signed=True)

    assert [place(first) for first in (0, 4, 8)] == [3, -1, -5]


def test_images_are_told_apart_wherever_their_names_begin_and_end() -> None:
    one = image_bytes((ImageInput("ab", 0, 1), ImageInput("c", 0, 1)), 0, 4)
    other = image_bytes((ImageInput("a", 0, 1), ImageInput("bc", 0, 1)), 0, 4)
    assert one != other
    place = "\0" * 8  # as that of the first is written
    assert image_bytes((ImageInput(f"ab{place}c", 0, 1),), 0, 4) != one


def test_no_image_adds_nothing() -> None:
    assert image_bytes((), 0, 4) == b""
    assert image_bytes((ImageInput("cat", 20, 4),), 0, 4) == b""


# -- the memo ---------------------------------------------------------------

LONG = list(range(4 * (2 * CHUNK_BLOCKS + 3)))  # two whole chunks and a piece of one


def named(names: Keys, tokens: list[int], **fields: Any) -> list[bytes]:
    found: list[bytes] = []
    names.extend(found, request(**fields), np.array(tokens, np.int32))
    return found


def remembered(names: Keys) -> int:
    return kept(names)


def chained_by_hand(tokens: list[int], parent: bytes) -> list[bytes]:
    """What the keys are by definition, four tokens to a block."""
    found: list[bytes] = []
    for first in range(0, len(tokens), 4):
        content = np.array(tokens[first : first + 4], np.int32).tobytes()
        parent = blake2b(parent + content, digest_size=KEY_BYTES).digest()
        found.append(parent)
    return found


@pytest.mark.parametrize("fields", [{}, {"cache_salt": "s"}, {"adapter": "l"}], ids=str)
def test_remembered_contents_give_the_same_keys_as_fresh_ones(fields: dict[str, str]) -> None:
    names = Keys(4)
    named(names, LONG)  # another root, for two of the three
    expected = chained_by_hand(LONG, names.root(request(**fields)))
    for _ in range(2):
        assert named(names, LONG, **fields) == expected


def test_images_are_not_lost_on_contents_that_are_remembered() -> None:
    names = Keys(4)
    plain = named(names, LONG)
    pictured = named(names, LONG, images=(ImageInput("cat", 5, 2),))
    assert common(plain, pictured) == 1
    assert pictured == keys_of(LONG, images=(ImageInput("cat", 5, 2),))
    assert named(names, LONG) == plain


@pytest.mark.parametrize("blocks", [1, CHUNK_BLOCKS - 1, CHUNK_BLOCKS, CHUNK_BLOCKS + 1])
def test_long_prompts_are_named_bit_by_bit_as_in_one_go(blocks: int) -> None:
    names, found = Keys(4), list[bytes]()
    for length in (4 * blocks, 4 * blocks + 1, len(LONG)):
        names.extend(found, request(), np.array(LONG[:length], np.int32))
    assert found == keys_of(LONG)


def test_only_whole_chunks_are_remembered() -> None:
    names = Keys(4)
    named(names, LONG[: 4 * CHUNK_BLOCKS - 1])
    assert remembered(names) == 0
    named(names, LONG)
    assert remembered(names) == 2


def test_a_content_that_is_remembered_is_not_digested_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names, whole = Keys(4), LONG[: 4 * CHUNK_BLOCKS]
    expected = named(names, whole)
    monkeypatch.delattr(module, "BLANK")
    assert named(names, whole) == expected


@pytest.mark.parametrize("blocks", [0, 1, CHUNK_BLOCKS, CHUNK_BLOCKS + 2, 2 * CHUNK_BLOCKS])
def test_a_step_further_is_all_that_is_remembered_and_one_more_block(blocks: int) -> None:
    names = Keys(4)
    named(names, LONG[: 4 * blocks])
    found: list[bytes] = []
    names.further(found, request(), np.array(LONG, np.int32))
    assert found == keys_of(LONG)[: blocks // CHUNK_BLOCKS * CHUNK_BLOCKS + 1]


def test_a_step_further_is_one_block_where_there_are_items() -> None:
    names, images = Keys(4), (ImageInput("cat", 1, 2),)
    named(names, LONG)
    expected, found = keys_of(LONG, images=images), list[bytes]()
    for blocks in range(1, 4):
        names.further(found, request(images=images), np.array(LONG, np.int32))
        assert found == expected[:blocks]


def test_there_is_no_step_beyond_the_last_full_block() -> None:
    names, whole = Keys(4), LONG[: 4 * CHUNK_BLOCKS]
    expected, found = named(names, whole), list[bytes]()
    names.further(found, request(), np.array([*whole, 1, 2, 3], np.int32))
    assert found == expected


def test_what_is_done_with_keys_does_not_change_what_is_remembered() -> None:
    names, whole = Keys(4), LONG[: 4 * CHUNK_BLOCKS]
    expected = keys_of(whole)
    for _ in range(2):
        found = named(names, whole)
        assert found == expected
        found.clear()


def test_the_memo_is_bounded_and_forgetting_changes_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MEMO_STEMS", 5)
    names = Keys(4)
    for start in range(12):
        tokens = [start, *LONG]
        assert named(names, tokens) == keys_of(tokens)
        assert remembered(names) == min(2 * (start + 1), 5)
    assert named(names, [0, *LONG]) == keys_of([0, *LONG])


def test_the_memo_forgets_the_oldest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MEMO_STEMS", 2)
    names = Keys(4)
    one, other, last = ([start, *LONG][: 4 * CHUNK_BLOCKS] for start in range(3))
    expected = [named(names, tokens) for tokens in (one, other, last)]
    monkeypatch.delattr(module, "BLANK")  # from here on nothing new can be named
    assert [named(names, tokens) for tokens in (other, last)] == expected[1:]
    with pytest.raises(NameError):
        named(names, one)


def test_what_parts_within_a_chunk_is_remembered_from_there_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names, whole = Keys(4), LONG[: 4 * CHUNK_BLOCKS]
    branches = [[*whole[:at], 9, *whole[at + 1 :]] for at in (5, 22, 23, 4 * CHUNK_BLOCKS - 1)]
    expected = [named(names, tokens) for tokens in (whole, *branches)]
    assert expected == [keys_of(tokens) for tokens in (whole, *branches)]
    monkeypatch.delattr(module, "BLANK")  # from here on nothing new can be named
    assert [named(names, tokens) for tokens in (whole, *branches)] == expected


def test_what_follows_a_part_of_something_is_not_remembered_behind_what_comes_before() -> None:
    names, parts = Keys(4), 4 * (CHUNK_BLOCKS + 5)
    whole = LONG[: 4 * 2 * CHUNK_BLOCKS]
    branch = [*whole[:parts], 9, *whole[parts + 1 :]]
    for tokens in (whole, branch, branch):
        assert named(names, tokens) == keys_of(tokens)
    shorter = branch[: 4 * CHUNK_BLOCKS] + branch[parts:]
    assert named(names, shorter) == keys_of(shorter)


@pytest.mark.parametrize("blocks", range(1, 8))
def test_a_stem_agrees_with_as_many_blocks_as_are_equal(blocks: int) -> None:
    width, content = 4, bytes(range(32))
    stem = Stem(content, [b""] * 8)
    other = content[: blocks * width] + b"x" * 32
    assert stem.agrees(b"before" + other, 6, width) == blocks


@pytest.mark.parametrize("longest", [1, 2 * CHUNK_BLOCKS, 3 * CHUNK_BLOCKS, 64])
def test_what_is_recalled_together_is_remembered_together(
    longest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LONGEST_STEM", longest)
    names, tokens = Keys(4), [token % 97 for token in range(4 * 5 * CHUNK_BLOCKS)]
    expected = named(names, tokens)
    assert expected == keys_of(tokens)
    monkeypatch.delattr(module, "BLANK")
    for blocks in (5, 4, 3, 5, 1):
        assert (
            named(names, tokens[: 4 * blocks * CHUNK_BLOCKS]) == expected[: blocks * CHUNK_BLOCKS]
        )
    assert max(map(len, stems(names))) == max(longest // CHUNK_BLOCKS, 1) * CHUNK_BLOCKS


def stems(names: Keys) -> list[list[bytes]]:
    """The keys of all that is remembered."""
    return [stem.keys for stem in names._memo.values()]
