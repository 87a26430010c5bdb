"""The pool against a model that is too simple to be wrong."""

from dataclasses import dataclass, field

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from paceline.core.events import BlockRemoved, CacheEvent
from paceline.core.settings.config import FreeOrder
from paceline.kv.pool import BlockPool

KEYS = [bytes([letter]) for letter in b"abcd"]


@dataclass
class Model:
    """One list of free blocks in the order of reuse, and one line for every block."""

    blocks: int
    blank_first: bool
    holders: list[int] = field(init=False)
    key: list[bytes | None] = field(init=False)
    sealed_at: list[int] = field(init=False)
    free: list[int] = field(init=False)  # the next to be taken first
    clock: int = 0

    def __post_init__(self) -> None:
        self.holders = [0] * self.blocks
        self.key = [None] * self.blocks
        self.sealed_at = [0] * self.blocks
        self.free = list(range(self.blocks))

    def take(self, count: int) -> tuple[list[int], list[bytes]]:
        """The blocks, and the keys that nobody has any more."""
        taken, self.free = self.free[:count], self.free[count:]
        gone: list[bytes] = []
        for block in taken:
            gone += self.forget(block)
            self.holders[block] = 1
        return taken, gone

    def forget(self, block: int) -> list[bytes]:
        key, self.key[block] = self.key[block], None
        return [key] if key is not None and key not in self.key else []

    def put_back(self, block: int) -> None:
        if self.blank_first and self.key[block] is None:
            self.free.insert(0, block)
        else:
            self.free.append(block)

    def find(self, key: bytes) -> int | None:
        """The block that was sealed with this content before all others that have it."""
        having = [block for block in range(self.blocks) if self.key[block] == key]
        return min(having, key=lambda block: self.sealed_at[block], default=None)


class PoolMachine(RuleBasedStateMachine):
    """Any order of calls that holders may make leaves pool and model agreeing."""

    pool: BlockPool
    model: Model
    events: list[CacheEvent]
    told: list[CacheEvent]

    @initialize(blocks=st.integers(1, 8), free_order=st.sampled_from(["unsealed_first", "lru"]))
    def make(self, blocks: int, free_order: FreeOrder) -> None:
        self.events, self.told = [], []
        self.pool = BlockPool(blocks, free_order, self.events)
        self.model = Model(blocks, free_order == "unsealed_first")

    def held(self) -> list[int]:
        return [block for block, count in enumerate(self.model.holders) if count]

    @rule(share=st.floats(0, 1))
    def take(self, share: float) -> None:
        count = int(share * self.pool.free)
        taken, gone = self.model.take(count)
        assert self.pool.take(count) == taken
        self.told += map(BlockRemoved, gone)

    @precondition(lambda self: self.held())
    @rule(draw=st.data())
    def drop(self, draw: st.DataObject) -> None:
        blocks = draw.draw(st.lists(st.sampled_from(self.held()), unique=True))
        self.pool.drop(blocks)
        for block in blocks:
            self.model.holders[block] -= 1
            if not self.model.holders[block]:
                self.model.put_back(block)

    @rule(key=st.sampled_from(KEYS))
    def hold_what_is_found(self, key: bytes) -> None:
        block = self.model.find(key)
        found = self.pool.find([key])
        assert found == ([] if block is None else [block])
        self.pool.hold(found)
        if block is not None:
            if not self.model.holders[block]:
                self.model.free.remove(block)
            self.model.holders[block] += 1

    @rule(draw=st.data(), key=st.sampled_from(KEYS))
    def seal(self, draw: st.DataObject, key: bytes) -> None:
        plain = [block for block in self.held() if self.model.key[block] is None]
        if not plain:
            return
        block = draw.draw(st.sampled_from(plain))
        new = [] if self.model.find(key) is not None else [key]
        assert self.pool.seal([block], [key]) == new
        self.model.clock += 1
        self.model.key[block], self.model.sealed_at[block] = key, self.model.clock

    @rule(draw=st.data(), key=st.sampled_from(KEYS))
    def unseal(self, draw: st.DataObject, key: bytes) -> None:
        block = draw.draw(st.integers(0, self.model.blocks - 1))
        self.pool.unseal(block, key)
        if self.model.key[block] != key:
            return
        self.told += map(BlockRemoved, self.model.forget(block))
        if self.model.blank_first and block in self.model.free:
            self.model.free.remove(block)
            self.model.put_back(block)

    @precondition(lambda self: not self.held())
    @rule()
    def clear(self) -> None:
        """Where blank blocks go first, those that just became blank go before the others."""
        self.pool.clear()
        model = self.model
        if model.blank_first:
            idle = [block for block in model.free if model.key[block] is not None]
            model.free = idle + [block for block in model.free if model.key[block] is None]
        model.key = [None] * model.blocks

    @rule(keys=st.lists(st.sampled_from(KEYS)))
    def find(self, keys: list[bytes]) -> None:
        expected: list[int] = []
        for key in keys:
            block = self.model.find(key)
            if block is None:
                break
            expected.append(block)
        assert self.pool.find(keys) == expected
        assert self.pool.free_among(expected) == sum(b in self.model.free for b in expected)

    @invariant()
    def agrees(self) -> None:
        model, pool = self.model, self.pool
        assert pool.free == len(model.free)
        assert [pool.holders(block) for block in range(model.blocks)] == model.holders
        assert self.events == self.told
        pool.check({block: count for block, count in enumerate(model.holders) if count})

    def teardown(self) -> None:
        """What is left is taken in the order that the model says."""
        if hasattr(self, "pool"):
            assert self.pool.take(self.pool.free) == self.model.free


PoolMachine.TestCase.settings = settings(
    max_examples=50,
    stateful_step_count=30,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestPool = PoolMachine.TestCase
