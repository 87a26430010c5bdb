"""What a consumer of cache events believes: which keys are cached."""

from collections.abc import Iterable
from hashlib import blake2b

import numpy as np

from paceline.core.events import AllBlocksCleared, BlockRemoved, BlockStored, CacheEvent
from paceline.kv.keys import KEY_BYTES, root_key


class Replica:
    """The keys that events alone say are cached. Each event must make sense to a consumer that
    keeps a tree: a block is stored once, after its parent, and removed once.

    With `orphans`, a block may be stored without its parent: what a failed row wrote is forgotten,
    but a sequence that has sampled well from it goes on.
    """

    def __init__(self, block_size: int) -> None:
        self.keys: set[bytes] = set()
        self.elsewhere: set[bytes] = set()  # keys of what a connector has
        self.orphans = False
        self._block_size = block_size

    def apply(self, events: Iterable[CacheEvent]) -> None:
        for event in events:
            match event:
                case AllBlocksCleared():
                    self.keys.clear()
                    self.elsewhere.clear()
                case BlockRemoved(key, "STORAGE"):
                    self.elsewhere.remove(key)
                case BlockStored(key=key, medium="STORAGE"):
                    assert key not in self.elsewhere, "a block was stored twice"
                    assert self._key_of(event) == key, "the key is not that of the content"
                    self.elsewhere.add(key)
                case BlockRemoved(key):
                    assert key in self.keys, "a block was removed that was not stored"
                    self.keys.remove(key)
                case BlockStored():
                    self._store(event)

    def _store(self, event: BlockStored) -> None:
        assert event.key not in self.keys, "a block was stored twice"
        known = event.parent is None or event.parent in self.keys
        assert known or self.orphans, "a block came before its parent"
        assert self._key_of(event) == event.key, "the key is not that of the content"
        self.keys.add(event.key)

    def _key_of(self, event: BlockStored) -> bytes:
        """The key, computed from the event alone."""
        assert len(event.tokens) == self._block_size
        parent = event.parent or root_key(self._block_size, event.adapter, event.salt)
        content = parent + np.array(event.tokens, np.int32).tobytes()
        for identity, offset in event.images:
            content += len(identity.encode()).to_bytes(8, "little") + identity.encode()
            content += offset.to_bytes(8, "little", signed=True)
        return blake2b(content, digest_size=KEY_BYTES).digest()
