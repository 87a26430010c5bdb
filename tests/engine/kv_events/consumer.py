"""A router's view of the caches, written from the contract of the wire format alone.

It imports nothing of paceline: three frames, msgpack, events as arrays or maps, a replay socket.
"""

import struct
from collections.abc import Callable
from time import monotonic
from typing import Any

import zmq
from msgspec import msgpack

PATIENCE_S = 30.0
STORED = (
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
    "extra_keys",
    "group_idx",
    "kv_cache_spec_kind",
    "kv_cache_spec_sliding_window",
)
PLACES = {
    "BlockStored": STORED,
    "BlockRemoved": ("block_hashes", "medium", "group_idx"),
    "AllBlocksCleared": (),
}


def decoded(event: Any) -> dict[str, Any]:
    """An event by name of its fields, from either encoding."""
    if isinstance(event, dict):
        return event
    return {"type": event[0], **dict(zip(PLACES[event[0]], event[1:], strict=False))}


def number(frame: bytes) -> int:
    return struct.unpack(">q", frame)[0]


class Consumer:
    """The blocks that are cached, by hash; kept by the events of one publisher."""

    def __init__(self, endpoint: str, replay: str = "", topic: str = "") -> None:
        self.topic = topic.encode()
        self.last = -1  # the sequence number of the latest batch
        self.batches: list[list[dict[str, Any]]] = []
        self.blocks: dict[int, tuple[int | None, tuple[int, ...]]] = {}  # parent and tokens
        self.context = zmq.Context()
        self.live = self.context.socket(zmq.SUB)
        self.live.setsockopt(zmq.SUBSCRIBE, self.topic)
        self.live.connect(endpoint)
        self.replay = self.context.socket(zmq.DEALER) if replay else None
        if self.replay is not None:
            self.replay.connect(replay)

    def __enter__(self) -> "Consumer":
        return self

    def __exit__(self, *_: object) -> None:
        self.context.destroy(linger=0)

    def receive(self, wait_s: float = PATIENCE_S) -> bool:
        """Read the next batch, and before it what was missed. False if none comes."""
        if not self.live.poll(round(wait_s * 1000)):
            return False
        topic, sequence, payload = self.live.recv_multipart()
        assert topic == self.topic
        if number(sequence) > self.last + 1 and self.replay is not None:
            self.catch_up()
        if number(sequence) > self.last:  # else it was among those sent again
            self.apply(number(sequence), payload)
        return True

    def until(self, reached: Callable[[], Any]) -> None:
        give_up = monotonic() + PATIENCE_S
        while not reached():
            assert monotonic() < give_up, "it was not reached in time"
            if not self.receive(0.1) and self.replay is not None:
                self.catch_up()  # what was published before the connection was made is missed

    def catch_up(self) -> None:
        """Ask for all batches after the latest one."""
        assert self.replay is not None
        self.replay.send_multipart((b"", struct.pack(">Q", self.last + 1)))
        while True:
            assert self.replay.poll(round(PATIENCE_S * 1000)), "no answer"
            empty, topic, sequence, payload = self.replay.recv_multipart()
            assert (empty, topic) == (b"", self.topic)
            if number(sequence) == -1:
                assert payload == b""
                return
            self.apply(number(sequence), payload)

    def apply(self, sequence: int, payload: bytes) -> None:
        sent_at, events, rank = msgpack.decode(payload)
        assert isinstance(sent_at, float)
        assert rank == 0
        self.last = sequence
        self.batches.append([decoded(one) for one in events])
        for event in self.batches[-1]:
            if event["type"] == "AllBlocksCleared":
                self.blocks.clear()
            elif event["type"] == "BlockRemoved":
                for one in event["block_hashes"]:
                    del self.blocks[one]
            else:
                self.store(event)

    def store(self, event: dict[str, Any]) -> None:
        size, parent = event["block_size"], event["parent_block_hash"]
        assert len(event["token_ids"]) == size * len(event["block_hashes"])
        assert event["medium"] == "GPU"
        for place, one in enumerate(event["block_hashes"]):
            assert parent is None or parent in self.blocks
            assert 1 << 32 <= one < 1 << 64
            tokens = event["token_ids"][place * size : (place + 1) * size]
            self.blocks[one] = parent, tuple(tokens)
            parent = one

    def cached(self, tokens: list[int]) -> int:
        """How many leading tokens are cached."""
        known = {content: key for key, content in self.blocks.items()}
        size = len(next(iter(self.blocks.values()))[1]) if self.blocks else 1
        parent, found = None, 0
        while (key := known.get((parent, tuple(tokens[found : found + size])))) is not None:
            parent, found = key, found + size
        return found
