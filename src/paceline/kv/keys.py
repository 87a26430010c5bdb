"""Content keys, a chained hash for every full block, and the head that binds content to its key."""

from collections import OrderedDict
from hashlib import blake2b
from struct import Struct
from typing import NamedTuple
from zlib import crc32

from paceline.core.arrays import I32
from paceline.core.multimodal import ImageInput
from paceline.core.request import Request

KEY_BYTES = 16
BYTES_PER_TOKEN = 4
BLANK = blake2b(digest_size=KEY_BYTES)
CHUNK_BLOCKS, LONGEST_STEM = 16, 64  # blocks; a stem grows by chunks up to this length
MEMO_STEMS = 4096  # stems in the memo
HEAD = Struct("<8s12sIQ")  # magic, owner, checksum of owner and content, bytes of the content
MAGIC = b"paceKV\x00\x02"


def root_key(block_size: int, adapter: str, salt: str, model: str = "") -> bytes:
    """The key that the first block chains to. Prompts with different roots never share blocks."""
    digest = blake2b(digest_size=KEY_BYTES, person=b"paceline-root")
    for part in (str(block_size), adapter, salt, model):
        encoded = part.encode()
        digest.update(len(encoded).to_bytes(8, "little") + encoded)
    return digest.digest()


def images_within(
    images: tuple[ImageInput, ...], first: int, end: int
) -> tuple[tuple[str, int], ...]:
    """The images that overlap positions `first:end`, with their offsets relative to `first`."""
    return tuple(
        (image.identity, image.offset - first)
        for image in images
        if image.offset < end and image.offset + image.length > first
    )


def image_bytes(images: tuple[ImageInput, ...], first: int, end: int) -> bytes:
    """The same as bytes."""
    parts: list[bytes] = []
    for identity, offset in images_within(images, first, end):
        name = identity.encode()
        parts += [len(name).to_bytes(8, "little"), name]
        parts.append(offset.to_bytes(8, "little", signed=True))
    return b"".join(parts)


def digest(content: bytes) -> bytes:
    blank = BLANK.copy()  # costs half as much as a new one
    blank.update(content)
    return blank.digest()


def head_of(layout: str, key: bytes, content: memoryview) -> bytes:
    """What precedes the content of a block in a store that outlives the engine or is shared.

    The owner is a digest of layout and key, so content that is damaged or that was stored under
    another key has another head. This finds accidents, not forgeries, which would take a secret.
    """
    owner = blake2b(b":".join((layout.encode(), key)), digest_size=12).digest()
    return HEAD.pack(MAGIC, owner, crc32(content, crc32(owner)), content.nbytes)


class Stem(NamedTuple):
    """Consecutive blocks: their tokens and their keys."""

    content: bytes
    keys: list[bytes]

    def agrees(self, content: bytes, at: int, width: int) -> int:
        """How many leading blocks of the stem `content` has at byte `at`. At least one and not all,
        which the caller has checked."""
        low, high = 1, len(self.keys)
        while high - low > 1:
            middle = (low + high) // 2
            if content.startswith(self.content[: middle * width], at):
                low = middle
            else:
                high = middle
        return low


class Keys:
    """Computes the keys of blocks. Each key depends on the whole prefix, and on nothing else of the
    process: equal content has equal keys in all processes.

    A memo holds the keys of stems that were hashed before, because prompts often begin alike.
    """

    def __init__(self, block_size: int, model: str = "") -> None:
        self.block_size, self._model = block_size, model
        self.width = block_size * BYTES_PER_TOKEN  # bytes of a block's tokens
        self._plain = root_key(block_size, "", "", model)
        self._memo: OrderedDict[bytes, Stem] = OrderedDict()  # by parent and first block

    def renew(self, model: str) -> None:
        """The model has other weights from now on: keys chain to other roots. Keys that sequences
        have are wrong then."""
        self._model = model
        self._plain = root_key(self.block_size, "", "", model)
        self._memo.clear()

    def root(self, request: Request) -> bytes:
        if not request.adapter and not request.cache_salt:
            return self._plain
        return root_key(self.block_size, request.adapter, request.cache_salt, self._model)

    def parent(self, keys: list[bytes], request: Request, block: int) -> bytes:
        """The key that a block chains to: that of the block before it, or the root."""
        return keys[block - 1] if block else self.root(request)

    def start(self, keys: list[bytes], request: Request, tokens: I32, block: int) -> bytes:
        """The key that a block chains to, followed by the tokens of the block if all are known."""
        parent, size = keys[block - 1] if block else self.root(request), self.block_size
        content = tokens[block * size : (block + 1) * size]
        return parent + content.tobytes() if len(content) == size else parent

    def extend(self, keys: list[bytes], request: Request, tokens: I32) -> None:
        """Append a key for every full block of `tokens` that has none yet."""
        full = len(tokens) // self.block_size
        if request.images and len(keys) < full:
            keys += self._with_images(keys, request, tokens, full)
        while len(keys) < full:
            size, done = self.block_size, len(keys)
            self._recall(keys, request, tokens)
            if len(keys) == done:
                end = min(full, (done // CHUNK_BLOCKS + 1) * CHUNK_BLOCKS)
                content = tokens[done * size : end * size].tobytes()
                keys += self.chain(self.parent(keys, request, done), content)
                self._remember(keys, request, tokens)

    def further(self, keys: list[bytes], request: Request, tokens: I32) -> None:
        """Append all keys that the memo has, and one more if there is a full block for it."""
        if request.images:
            keys += self._with_images(keys, request, tokens, len(keys) + 1)
            return
        start = self._recall(keys, request, tokens)
        if len(start) == KEY_BYTES + self.width:
            keys.append(digest(start))
            self._remember(keys, request, tokens)

    def _recall(self, keys: list[bytes], request: Request, tokens: I32) -> bytes:
        """Append the next keys that the memo has. Returns the start of the block behind them, with
        as many of its tokens as are known."""
        width, done = self.width, len(keys)
        start = self.start(keys, request, tokens, done)
        if start not in self._memo:
            return start
        content, at, front = tokens[done * self.block_size :].tobytes(), 0, None
        while (stem := self._memo.get(start)) is not None:
            if content.startswith(stem.content, at):
                keys += stem.keys
                front = self._join(front, start, stem)
            else:
                keys += stem.keys[: stem.agrees(content, at, width)]
                front = None
            at = (len(keys) - done) * width
            start = keys[-1] + content[at : at + width]
        return start

    def _join(
        self, front: tuple[bytes, Stem] | None, start: bytes, stem: Stem
    ) -> tuple[bytes, Stem]:
        """Merge two adjacent stems of the memo if the result is not too long. Returns the stem to
        merge with the next one, and its place in the memo."""
        if front is None or len(front[1].keys) + len(stem.keys) > LONGEST_STEM:
            return start, stem
        start, before = front
        self._memo[start] = joined = Stem(before.content + stem.content, before.keys + stem.keys)
        return start, joined

    def _remember(self, keys: list[bytes], request: Request, tokens: I32) -> None:
        """Add the deepest chunk to the memo if it is complete."""
        size, end = self.block_size, len(keys)
        if end % CHUNK_BLOCKS:
            return
        known = keys[: end - CHUNK_BLOCKS]
        self._recall(known, request, tokens[: end * size])
        first = len(known)
        if first < end:
            stem = Stem(tokens[first * size : end * size].tobytes(), keys[first:])
            self._memo[self.start(keys, request, tokens, first)] = stem
        if len(self._memo) > MEMO_STEMS:
            self._memo.popitem(last=False)

    def chain(self, parent: bytes, content: bytes) -> list[bytes]:
        """The keys of consecutive blocks without images, the first of which chains to `parent`."""
        width = self.width
        keys: list[bytes] = []
        for first in range(0, len(content), width):
            parent = digest(parent + content[first : first + width])
            keys.append(parent)
        return keys

    def _with_images(
        self, known: list[bytes], request: Request, tokens: I32, end: int
    ) -> list[bytes]:
        size = self.block_size
        keys: list[bytes] = []
        parent = self.parent(known, request, len(known))
        for block in range(len(known), end):
            first, behind = block * size, (block + 1) * size
            images = image_bytes(request.images, first, behind)
            parent = digest(parent + tokens[first:behind].tobytes() + images)
            keys.append(parent)
        return keys
