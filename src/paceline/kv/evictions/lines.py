"""Idle blocks as a tree of lines, of which only ends are reused."""

from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf, log2

import numpy as np

from paceline.core.arrays import F64
from paceline.core.settings.config import CacheConfig
from paceline.kv.eviction import Clock, Eviction

LEAST_PAUSE_S = 0.1  # shorter ones are as good as none
MOST_STEP = 1.5  # of the logarithm of a pace: a long pause may be an exception
LEAST_SHARE = 0.25  # of the latest pause in a pace
TEMPLATE_BLOCKS = 2
RANKED = 64  # lines that are reused before all are compared again
RANKED_S = 0.5  # or after this time


@dataclass(slots=True, eq=False)
class Session:
    """A conversation, or anything else that comes back to the same content.

    It is open while a request of it waits or runs. `turns` counts how often it came back, and
    `pace` is about the logarithm of its pauses. `counted` is the part of the present pause that has
    been observed.
    """

    named: bool = False  # did a client name it?
    is_shared: bool = False  # is it the beginning of several others?
    open: int = 0  # requests
    turns: int = 0
    pace: float = 0.0
    ended: float = 0.0
    counted: float = 0.0
    kv_blocks: int = 0  # that its latest request left
    state_blocks: int = 0  # of its snapshots

    def learn(self, pause_s: float) -> None:
        """It came back after a pause. An unusual one moves the pace by a bounded step."""
        pace = log2(max(pause_s, LEAST_PAUSE_S))
        if self.turns:
            step = min(max(pace - self.pace, -MOST_STEP), MOST_STEP)
            self.pace += step * max(1 / (self.turns + 1), LEAST_SHARE)
        else:
            self.pace = pace
        self.turns += 1


@dataclass(slots=True, eq=False)
class Line:
    """Consecutive blocks of a prefix that end where another line or nothing goes on.

        b0 b1 b2 b3 | b4 b5        start 0, a system prompt
                    | b6 b7 b8     start 4, parent: the first

    All its blocks have it as their owner, except for some that lost their content.
    """

    number: int
    session: Session
    start: int  # index of its first block in a sequence
    blocks: list[int]
    keys: list[bytes]  # of its first blocks, those of prompts
    parent: "Line | None" = None
    children: int = 0  # lines that go on behind it, or behind one of its blocks if they are dead
    dead: int = 0  # those that are
    idle: int = 0  # its blocks without a holder
    most: int = 0  # blocks that it had, with those that were evicted
    evicted_at: float = 0.0
    is_dead: bool = False  # its session has gone on elsewhere
    is_state: bool = False  # its blocks are a snapshot behind `start` blocks
    is_ranked: bool = False  # is it among the next to be reused, and unchanged since?
    score: float = 0.0  # when it was ranked

    @property
    def end(self) -> int:
        return self.start + len(self.blocks)

    @property
    def prompt_end(self) -> int:
        """The index behind the blocks that requests brought: others were generated."""
        return self.start + len(self.keys)

    @property
    def identity(self) -> bytes:
        """The key of a block near the end of the prompt: a request with that block continues it.
        The very end depends on what the chat template writes there."""
        return self.keys[max(len(self.keys) - 1 - TEMPLATE_BLOCKS, 0)] if self.keys else b""


class Lines(Eviction):
    """Reuses the last block of the line with the lowest score, again and again.

    A prefix is of no use without its beginning. So a line is reused from its end, and only when no
    line goes on behind it. Lines are ranked for a while at a time: `scores` compares all of them,
    and the lowest are used up one after the other. Idle blocks that no sequence left, such as those
    that a connector loaded, are `loose`; they are reused by age.
    """

    def __init__(self, config: CacheConfig, clock: Clock) -> None:
        super().__init__(config, clock)
        self.idle = self
        self.lines: dict[int, Line] = {}
        self._made = 0
        self._owner: list[Line | None] = [None] * config.num_blocks
        self._idle: dict[int, None] = {}
        self._loose: OrderedDict[int, float] = OrderedDict()
        self._ranked: list[Line] = []  # the next last
        self._ranked_at = -inf
        self._loose_score = 0.0  # of the oldest, when lines were ranked

    @abstractmethod
    def scores(self, lines: list[Line]) -> F64:
        """How much each line is worth to be kept; the lowest are reused."""

    @abstractmethod
    def loose_score(self, age_s: float) -> float:
        """The score of a loose block."""

    @abstractmethod
    def gone(self, line: Line) -> None:
        """The last block of a line was reused."""

    # -- as the pool sees it ------------------------------------------------

    def __len__(self) -> int:
        return len(self._idle)

    def __contains__(self, block: object, /) -> bool:
        return block in self._idle

    def __iter__(self) -> Iterator[int]:
        return iter(self._idle)

    def __reversed__(self) -> Iterator[int]:
        return reversed(self._idle)

    def __setitem__(self, block: int, value: None, /) -> None:
        self._idle[block] = None
        line = self._owner[block]
        if line is None:
            self._loose[block] = self.clock.now
        else:
            line.idle += 1

    def __delitem__(self, block: int, /) -> None:
        del self._idle[block]
        line = self._owner[block]
        if line is None:
            del self._loose[block]
        else:
            line.idle -= 1
            if line.is_state and not line.idle:
                line.is_ranked = False

    def pop(self, block: int, /) -> None:
        del self[block]
        self._owner[block] = None

    def popitem(self, last: bool = True) -> tuple[int, None]:
        line = self._lowest()
        if self._loose:
            block = next(iter(self._loose))
            if line is None or self._loose_score <= line.score:
                del self[block]
                return block, None
        if line is None:
            line = self._deepest_line()
        return self._pop_end(line), None

    def move_to_end(self, key: int, last: bool = True) -> None:
        if (line := self._owner[key]) is not None:
            self.kill(line)

    def clear(self) -> None:
        self._owner = [None] * len(self._owner)
        for kept in (self._idle, self._loose, self.lines, self._ranked):
            kept.clear()

    # -- choosing -----------------------------------------------------------

    def _lowest(self) -> Line | None:
        """The line to reuse next; None: none has an end without a holder."""
        if self.clock.now - self._ranked_at > RANKED_S:
            self._rank()
        for _ in range(2):
            while self._ranked:
                line = self._ranked[-1]
                if line.is_ranked and self._is_free_end(line):
                    return line
                line.is_ranked = False
                self._ranked.pop()
            self._rank()
        return None

    def _rank(self) -> None:
        for line in self._ranked:
            line.is_ranked = False
        self._ranked_at = self.clock.now
        if self._loose:
            self._loose_score = self.loose_score(self.clock.now - next(iter(self._loose.values())))
        self._ranked = []
        free = [line for line in self.lines.values() if line.idle and self._is_free_end(line)]
        if not free:
            return
        scores = self.scores(free)
        lowest: list[int] = np.argsort(scores, kind="stable")[:RANKED][::-1].tolist()
        for one in lowest:
            line = free[one]
            line.is_ranked, line.score = True, float(scores[one])
            self._ranked.append(line)

    def _is_free_end(self, line: Line) -> bool:
        if line.children or not line.idle:
            return False
        blocks = line.blocks
        while blocks and self._owner[blocks[-1]] is not line:
            blocks.pop()
        return bool(blocks) and blocks[-1] in self._idle

    def _deepest_line(self) -> Line:
        """The deepest line with an idle block. What goes on behind it has lost its content, or is
        held by a transfer."""
        return max((line for line in self.lines.values() if line.idle), key=lambda one: one.start)

    def _pop_end(self, line: Line) -> int:
        """Take the deepest idle block of a line, and with it all that lies behind it."""
        blocks, owner = line.blocks, self._owner
        at = len(blocks) - 1
        while owner[blocks[at]] is not line or blocks[at] not in self._idle:
            if owner[blocks[at]] is line:
                owner[blocks[at]] = None
            at -= 1
        block = blocks[at]
        del blocks[at:]
        del self[block]
        owner[block] = None
        line.evicted_at = self.clock.now
        if not blocks:
            self.gone(line)
            self.remove(line)
        return block

    # -- the tree -----------------------------------------------------------

    def line_of(self, block: int) -> Line | None:
        return self._owner[block]

    def add(self, session: Session, start: int, blocks: list[int], parent: Line | None) -> Line:
        """A new line of blocks whose content is new, or was loose."""
        self._made += 1
        line = Line(self._made, session, start, [], [], parent)
        self.lines[line.number] = line
        if parent is not None:
            parent.children += 1
        self.extend(line, blocks)
        return line

    def extend(self, line: Line, blocks: list[int]) -> None:
        owner, idle = self._owner, self._idle
        for block in blocks:
            if block in idle:  # of a snapshot
                before = owner[block]
                if before is None:
                    del self._loose[block]
                else:
                    before.idle -= 1
                line.idle += 1
            owner[block] = line
        line.blocks += blocks
        line.most = len(line.blocks)

    def split(self, line: Line, count: int, session: Session) -> Line:
        """Make the first `count` blocks a line of its own and return it. `line` is the rest."""
        head = self.add(session, line.start, [], line.parent)
        if line.parent is not None:
            line.parent.children -= 1
        own, line.blocks = line.blocks[:count], line.blocks[count:]
        for block in own:
            if self._owner[block] is line:
                self._owner[block] = head
                if block in self._idle:
                    line.idle -= 1
                    head.idle += 1
        head.blocks, head.most, head.children = own, count, 1
        head.keys, line.keys = line.keys[:count], line.keys[count:]
        line.start, line.most, line.parent = head.end, line.most - count, head
        return head

    def follow(self, blocks: list[int]) -> tuple[Line | None, int]:
        """The deepest line of a prefix, and how many blocks lead to the end of what they share."""
        at, found = 0, None
        while at < len(blocks):
            line = self._owner[blocks[at]]
            if line is None or line.is_state or line.start != at or not line.blocks:
                break
            same = leading(line.blocks, blocks, at)
            if not same:
                break
            found, at = line, at + same
            if same < len(line.blocks):
                break
        return found, at

    def kill(self, line: Line) -> None:
        """Reuse a line before all others."""
        if line.parent is not None and not line.is_dead:
            line.parent.dead += 1
        line.is_dead = line.is_ranked = True
        line.score = 0.0
        self._ranked.append(line)

    def renew(self, line: Line) -> None:
        """A line is in use again."""
        if line.parent is not None and line.is_dead:
            line.parent.dead -= 1
        line.is_dead = line.is_ranked = False

    def remove(self, line: Line) -> None:
        del self.lines[line.number]
        self.renew(line)
        if line.parent is not None:
            line.parent.children -= 1
        if line.children:
            for child in self.lines.values():
                child.parent = None if child.parent is line else child.parent
        if line.is_state:
            line.session.state_blocks -= line.most

    def drop_empty(self) -> None:
        """Remove lines whose blocks have lost their content in another way."""
        unused = [line for line in self.lines.values() if not line.idle and not line.children]
        for line in unused:
            if all(self._owner[block] is not line for block in line.blocks):
                self.remove(line)

    def check(self) -> None:
        counted = len(self._loose) + sum(line.idle for line in self.lines.values())
        assert counted == len(self._idle), f"{counted} of {len(self._idle)} idle blocks are known"
        children = dict.fromkeys(self.lines, 0)
        for line in self.lines.values():
            own = [block for block in line.blocks if self._owner[block] is line]
            idle = sum(1 for block in own if block in self._idle)
            assert idle == line.idle, f"line {line.number} has {idle} idle blocks, not {line.idle}"
            if line.parent is not None:
                children[line.parent.number] += 1
        assert all(self.lines[one].children == count for one, count in children.items())


def leading(row: list[int], other: list[int], at: int) -> int:
    """How many of the first entries of `row` are in `other` from index `at` on."""
    count = min(len(row), len(other) - at)
    if row[:count] == other[at : at + count]:
        return count
    return next(index for index in range(count) if row[index] != other[at + index])
