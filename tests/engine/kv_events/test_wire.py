"""Events as bytes: the fields of the contract, in its order and under its names."""

from dataclasses import replace
from typing import Any

import pytest
from msgspec import msgpack

from paceline.core.events import AllBlocksCleared, BlockRemoved, BlockStored, CacheEvent
from paceline.engine.kv_events import encode_batch, wire_key
from tests.engine.kv_events.consumer import decoded

KEYS = [bytes([place]) * 16 for place in range(8)]
NUMBERS = [int.from_bytes(key[8:], "big") | 1 << 63 for key in KEYS]
FIRST = BlockStored(KEYS[0], None, (1, 2), "")
SECOND = BlockStored(KEYS[1], KEYS[0], (3, 4), "")


def arrays(*events: CacheEvent) -> list[Any]:
    return msgpack.decode(encode_batch(5.5, events, 2, "array", 3))[1]


def maps(*events: CacheEvent) -> list[Any]:
    return msgpack.decode(encode_batch(5.5, events, 2, "map", 3))[1]


def test_a_batch_has_a_time_its_events_and_a_rank() -> None:
    batch = msgpack.decode(encode_batch(5.5, [AllBlocksCleared()], 2, "array", 3))
    assert batch == [5.5, [["AllBlocksCleared"]], 3]


def test_arrays_have_the_fields_of_the_contract_and_no_empty_tail() -> None:
    assert arrays(FIRST) == [["BlockStored", NUMBERS[:1], None, [1, 2], 2, None, "GPU"]]
    assert arrays(BlockRemoved(KEYS[2])) == [["BlockRemoved", [NUMBERS[2]], "GPU"]]
    assert arrays(AllBlocksCleared()) == [["AllBlocksCleared"]]


def test_maps_have_the_same_under_names() -> None:
    assert maps(FIRST) == [
        {
            "type": "BlockStored",
            "block_hashes": NUMBERS[:1],
            "parent_block_hash": None,
            "token_ids": [1, 2],
            "block_size": 2,
            "lora_id": None,
            "medium": "GPU",
        }
    ]
    removed = {"type": "BlockRemoved", "block_hashes": [NUMBERS[2]], "medium": "GPU"}
    assert maps(BlockRemoved(KEYS[2]), AllBlocksCleared()) == [
        removed,
        {"type": "AllBlocksCleared"},
    ]


def test_blocks_that_follow_one_another_are_one_event() -> None:
    other = BlockStored(KEYS[2], KEYS[0], (5, 6), "")
    (together, apart) = map(decoded, arrays(FIRST, SECOND, other))
    assert together["block_hashes"] == NUMBERS[:2]
    assert together["token_ids"] == [1, 2, 3, 4]
    assert (apart["block_hashes"], apart["parent_block_hash"]) == ([NUMBERS[2]], NUMBERS[0])


def test_the_order_of_kinds_is_kept() -> None:
    events = [BlockRemoved(KEYS[3]), BlockRemoved(KEYS[4]), FIRST, BlockRemoved(KEYS[0]), FIRST]
    found = [(one[0], len(one[1])) for one in arrays(*events)]
    expected = ["BlockRemoved", "BlockStored", "BlockRemoved", "BlockStored"]
    assert found == list(zip(expected, [2, 1, 1, 1], strict=True))


@pytest.mark.parametrize("form", [arrays, maps])
def test_what_a_key_depends_on_besides_tokens_is_sent_along(form: Any) -> None:
    adapter = BlockStored(KEYS[0], None, (1, 2), "sql@abc", "pepper", (("cat", 1),))
    after = BlockStored(KEYS[1], KEYS[0], (3, 4), "sql@abc", "pepper", (("cat", -1), ("dog", 1)))
    (found,) = map(decoded, form(adapter, after))
    assert found["lora_name"] == "sql"
    assert found["extra_keys"] == [["sql", ["cat", 1], "pepper"], ["sql", ["cat", -1], ["dog", 1]]]
    salted = BlockStored(KEYS[0], None, (1, 2), "", "pepper")
    (found,) = map(decoded, form(salted, SECOND))
    assert found["extra_keys"] == [["pepper"], None]


def test_keys_are_written_as_unsigned_integers_of_64_bits() -> None:
    """Some consumers read no shorter form, which msgpack writes of a small number."""
    for key in (bytes(16), KEYS[1], b"\xff" * 16):
        assert len(msgpack.encode(wire_key(key))) == 9
    assert wire_key(bytes(15) + b"\x07") == 7 | 1 << 63
    assert wire_key(KEYS[1][:8] + KEYS[2][8:]) == NUMBERS[2]


def test_media_are_told_apart() -> None:
    events = [
        FIRST,
        replace(FIRST, medium="CPU"),
        BlockRemoved(KEYS[0]),
        BlockRemoved(KEYS[0], "CPU"),
    ]
    found = [(one["type"], one["medium"]) for one in maps(*events)]
    kinds = ["BlockStored", "BlockRemoved"]
    assert found == [(kind, medium) for kind in kinds for medium in ("GPU", "CPU")]
