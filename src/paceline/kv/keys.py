"""Content keys: a chained, collision-resistant name for every full block."""

from hashlib import blake2b

from paceline.core.arrays import I32
from paceline.core.request import Item, Request

KEY_BYTES = 16
MEMO_BLOCKS = 32768  # contents whose key is remembered: prompts begin alike more often than not


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
        self._memo: dict[bytes, bytes] = {}

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
        width, memo = size * tokens.itemsize, self._memo
        content = tokens[done * size : full * size].tobytes()
        for first in range(0, len(content), width):
            block = parent + content[first : first + width]
            if request.items:
                position = done * size + first // tokens.itemsize
                block += item_bytes(request.items, position, position + size)
            key = memo.get(block)
            if key is None:
                key = memo[block] = blake2b(block, digest_size=KEY_BYTES).digest()
            keys.append(key)
            parent = key
        if len(memo) > MEMO_BLOCKS:
            memo.clear()
