"""Content keys: a chained, collision-resistant name for every full block."""

from collections import OrderedDict
from hashlib import blake2b

from paceline.core.arrays import I32
from paceline.core.request import Item, Request

KEY_BYTES = 16
BYTES_PER_TOKEN = 4
BLANK = blake2b(digest_size=KEY_BYTES)
CHUNK_BLOCKS, MEMO_CHUNKS = 16, 4096  # of how many blocks a chunk is, and how many are remembered


def root_key(block_size: int, adapter: str, salt: str) -> bytes:
    """What the first block chains to; equal prompts of another root never share."""
    digest = blake2b(digest_size=KEY_BYTES, person=b"paceline-root")
    for part in (str(block_size), adapter, salt):
        encoded = part.encode()
        digest.update(len(encoded).to_bytes(8, "little") + encoded)
    return digest.digest()


def item_bytes(items: tuple[Item, ...], first: int, end: int) -> bytes:
    """The items that cover positions `first:end`, with their place relative to `first`."""
    parts: list[bytes] = []
    for item in items:
        if item.offset < end and item.offset + item.length > first:
            name = item.identity.encode()
            parts += [len(name).to_bytes(8, "little"), name]
            parts.append((item.offset - first).to_bytes(8, "little", signed=True))
    return b"".join(parts)


class Keys:
    """Names blocks by content. Each key commits to its whole prefix."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self._plain = root_key(block_size, "", "")
        self._memo: OrderedDict[bytes, list[bytes]] = OrderedDict()  # chunk to its keys

    def root(self, request: Request) -> bytes:
        if not request.adapter and not request.cache_salt:
            return self._plain
        return root_key(self.block_size, request.adapter, request.cache_salt)

    def extend(self, keys: list[bytes], request: Request, tokens: I32) -> None:
        """Append a key for every full block of `tokens` that has none yet."""
        size, done = self.block_size, len(keys)
        full = len(tokens) // size
        if done >= full:
            return
        parent = keys[-1] if keys else self.root(request)
        content = tokens[done * size : full * size].tobytes()
        if request.items:
            keys += self._with_items(parent, content, request.items, done * size)
            return
        chunk = CHUNK_BLOCKS * size * tokens.itemsize
        for first in range(0, len(content), chunk):
            found = self._chunk(
                parent, content[first : first + chunk], len(content) - first >= chunk
            )
            keys += found
            parent = found[-1]

    def _chunk(self, parent: bytes, content: bytes, whole: bool) -> list[bytes]:
        """The keys of a few blocks. Whole chunks are remembered: prompts often begin alike."""
        if not whole:
            return self._chain(parent, content)
        found = self._memo.get(parent + content)
        if found is None:
            found = self._memo[parent + content] = self._chain(parent, content)
            if len(self._memo) > MEMO_CHUNKS:
                self._memo.popitem(last=False)
        return found

    def _chain(self, parent: bytes, content: bytes) -> list[bytes]:
        width = self.block_size * BYTES_PER_TOKEN
        keys: list[bytes] = []
        for first in range(0, len(content), width):
            digest = BLANK.copy()  # half the price of a new one
            digest.update(parent + content[first : first + width])
            parent = digest.digest()
            keys.append(parent)
        return keys

    def _with_items(
        self, parent: bytes, content: bytes, items: tuple[Item, ...], start: int
    ) -> list[bytes]:
        width = self.block_size * BYTES_PER_TOKEN
        keys: list[bytes] = []
        for first in range(0, len(content), width):
            position = start + first // BYTES_PER_TOKEN
            digest = BLANK.copy()
            digest.update(parent + content[first : first + width])
            digest.update(item_bytes(items, position, position + self.block_size))
            parent = digest.digest()
            keys.append(parent)
        return keys
