"""KV events in vLLM's wire format: msgpack, each event an array or a map."""

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any, NamedTuple

from msgspec import msgpack

from paceline.core.adapter import adapter_name
from paceline.core.events import AllBlocksCleared, BlockRemoved, BlockStored, CacheEvent, Medium
from paceline.core.settings.features import EventEncoding

HIGHEST_BIT = 1 << 63


class WireEvent(NamedTuple):
    """An event under its name in vLLM. The first `required` fields are always written."""

    name: str
    required: int
    fields: dict[str, Any]


def wire_key(key: bytes) -> int:
    """A key as a 64-bit integer: its last 8 bytes, with the highest bit set.

    Routers index integers of 64 bits. With that bit, msgpack never writes a shorter form, which
    some of them do not read.
    """
    return int.from_bytes(key[-8:], "big") | HIGHEST_BIT


def encode_batch(
    time: float, events: Iterable[CacheEvent], block_size: int, encoding: EventEncoding, rank: int
) -> bytes:
    form = as_array if encoding == "array" else as_map
    return msgpack.encode([time, [form(one) for one in joined(events, block_size)], rank])


def as_array(event: WireEvent) -> list[Any]:
    """The name and the fields by place, without those at the end that are empty."""
    values = [*event.fields.values()]
    while len(values) > event.required and values[-1] is None:
        values.pop()
    return [event.name, *values]


def as_map(event: WireEvent) -> dict[str, Any]:
    """The fields by name, without those that are empty."""
    written = {
        name: value
        for place, (name, value) in enumerate(event.fields.items())
        if place < event.required or value is not None
    }
    return {"type": event.name, **written}


def joined(events: Iterable[CacheEvent], block_size: int) -> Iterator[WireEvent]:
    """The same events in the same order, consecutive ones in one where the format allows it."""
    for (kind, medium), alike in groupby(events, lambda one: (type(one), medium_of(one))):
        if kind is AllBlocksCleared:
            yield WireEvent("AllBlocksCleared", 0, {})
        elif kind is BlockRemoved:
            keys = [wire_key(one.key) for one in alike if isinstance(one, BlockRemoved)]
            yield WireEvent("BlockRemoved", 1, {"block_hashes": keys, "medium": medium})
        else:
            stored = (one for one in alike if isinstance(one, BlockStored))
            yield from (stored_event(chain, block_size) for chain in chains(stored))


def medium_of(event: CacheEvent) -> Medium | None:
    return None if isinstance(event, AllBlocksCleared) else event.medium


def chains(stored: Iterable[BlockStored]) -> Iterator[list[BlockStored]]:
    """Blocks that follow one another in the same prompt."""
    chain: list[BlockStored] = []
    for one in stored:
        if chain and one.parent != chain[-1].key:
            yield chain
            chain = []
        chain.append(one)
    yield chain


def stored_event(chain: list[BlockStored], block_size: int) -> WireEvent:
    first = chain[0]
    extra = [extra_keys(one) for one in chain]
    return WireEvent(
        "BlockStored",
        5,
        {
            "block_hashes": [wire_key(one.key) for one in chain],
            "parent_block_hash": None if first.parent is None else wire_key(first.parent),
            "token_ids": [token for one in chain for token in one.tokens],
            "block_size": block_size,
            "lora_id": None,
            "medium": first.medium,
            "lora_name": adapter_name(first.adapter) or None,
            "extra_keys": extra if any(extra) else None,
        },
    )


def extra_keys(block: BlockStored) -> list[Any] | None:
    """What a key depends on besides tokens, in vLLM's order: the adapter, the items with their
    offsets, and in the first block the salt."""
    found: list[Any] = [adapter_name(block.adapter)] if block.adapter else []
    found += map(list, block.items)
    if block.salt and block.parent is None:
        found.append(block.salt)
    return found or None
