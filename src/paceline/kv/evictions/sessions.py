"""Keeps the blocks of sessions that are likely to go on soon."""

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from paceline.core.arrays import F64
from paceline.core.plan import Blocks
from paceline.core.request import Sequence
from paceline.core.settings.config import CacheConfig
from paceline.kv.eviction import Clock, Shortfall
from paceline.kv.evictions.lines import TEMPLATE_BLOCKS, Line, Lines, Session
from paceline.kv.evictions.pauses import Pauses

REMEMBERED = 8192  # sessions by name, and lines by key after their last block was reused
SHARED = 0  # the kind of prefixes that several sessions begin with
KINDS = 4  # of what has come back: shared, once, up to three times, more often
DEEP_TOKENS = 16384  # a position this deep costs about twice as much to compute as the first one
OPEN = 1e9  # the score of what a request waits for
LONE_STATE = 0.05  # what KV without a snapshot is worth, where a hit needs one
SLOWLY = 0.02  # of each observation in an average


@dataclass(slots=True, eq=False)
class Gone:
    """A line without blocks, by its identity."""

    session: Session
    end: int
    evicted_at: float


@dataclass(slots=True, eq=False)
class Opened:
    """The session of a request that waits or runs, and how much of it was cached."""

    session: Session
    expected: int  # blocks
    evicted_at: float


class Sessions(Lines):
    """Reuses first what is least likely to be used soon, for what it costs to compute again.

    A session is known by the name that the client gives it (`Request.session`), or by its prefix:
    a request that begins with most of what an earlier one asked continues it, even if its blocks
    were reused meanwhile. The score of a line is that of its last block:

        worth of the present pause, by sessions of its kind (see `Pauses`)
        x cost of computing the block, which grows with its depth
        x chance that outputs are part of the next prompt, if it is one
        x share of the line in what it needs to be found, with the blocks of snapshots

    Pauses of a session that has come back are measured in those that it made before, and sessions
    differ by how often they came back. So those that are quick and those that are slow are told
    apart, and requests that never come back from both. While a request waits, what it will find is
    kept to the last.
    """

    watches = True

    def __init__(self, config: CacheConfig, clock: Clock) -> None:
        super().__init__(config, clock)
        self.first = Pauses(2)  # of sessions without a name, and with one
        self.later = Pauses(KINDS)  # in units of their pace
        self._named: OrderedDict[tuple[str, str], Session] = OrderedDict()
        self._gone: OrderedDict[bytes, Gone] = OrderedDict()
        self._open: dict[str, Opened] = {}  # by request
        self._outputs_reused = 1.0  # share of generated blocks that next turns begin with

    # -- requests -----------------------------------------------------------

    def asked(self, sequence: Sequence, blocks: Blocks) -> None:
        line, found = self.follow(list(blocks))
        gone = self._gone_behind(sequence, found)
        session, expected, evicted_at = self._named_session(sequence), found, 0.0
        if line is not None:
            if line.end == found and line.most > len(line.blocks):
                expected, evicted_at = line.start + line.most, line.evicted_at
            continued = self._continued(line, sequence)
            if continued:
                self._learn_outputs(line, found)
                session = session or line.session
            self._touch(line if not continued else line.parent)
        if gone is not None:
            expected, evicted_at = gone.end, gone.evicted_at
            if not gone.session.is_shared:
                session = session or gone.session
        session = session or Session(ended=self.clock.now)
        self._returned(session)
        session.open += 1
        self._open[sequence.request.id] = Opened(session, expected, evicted_at)

    def _named_session(self, sequence: Sequence) -> Session | None:
        request = sequence.request
        if not request.session:
            return None
        name = (request.tenant, request.session)
        if (session := self._named.get(name)) is None:
            session = self._named[name] = Session(named=True, ended=self.clock.now, turns=-1)
            if len(self._named) > REMEMBERED:
                self._named.popitem(last=False)
        self._named.move_to_end(name)
        return session

    def _gone_behind(self, sequence: Sequence, found: int) -> Gone | None:
        """The deepest line that went on behind the blocks found, if it was reused."""
        gone = self._gone
        if not gone:
            return None
        for key in reversed(sequence.keys[found:]):
            if key in gone:
                return gone[key] if gone[key].session.is_shared else gone.pop(key)
        return None

    @staticmethod
    def _continued(line: Line, sequence: Sequence) -> bool:
        """Does a request that begins with blocks of a line continue it? Otherwise it only has the
        same beginning, such as a system prompt."""
        at = max(line.prompt_end - 1 - TEMPLATE_BLOCKS, line.start)
        if line.children > line.dead or len(sequence.keys) <= at:
            return False
        return sequence.keys[at] == line.identity

    def _learn_outputs(self, line: Line, found: int) -> None:
        if (outputs := line.start + line.most - line.prompt_end) > 0 and line.end > line.prompt_end:
            share = min(max(found - line.prompt_end, 0) / outputs, 1.0)
            self._outputs_reused += SLOWLY * (share - self._outputs_reused)

    def _touch(self, line: Line | None) -> None:
        """A request begins with lines that others go on behind."""
        while line is not None:
            if line.session.is_shared:
                self._returned(line.session)
                line.session.ended, line.session.counted = self.clock.now, 0.0
            line = line.parent

    def _returned(self, session: Session) -> None:
        """A session goes on: learn from its pause."""
        if session.open:
            return
        if session.turns < 0:
            session.turns = 0
            return
        pause = self.clock.now - session.ended
        if not pause and not session.kv_blocks:
            return
        self._wait([session])
        pauses, kind, scale = self._measure(session)
        pauses.returned(kind, pause / scale)
        session.learn(pause)

    def shortfall(self, sequence: Sequence, tokens: int) -> Shortfall | None:
        opened, size = self._open.get(sequence.request.id), self.config.block_size
        if opened is None:
            return None
        expected = min(opened.expected, (len(sequence.tokens) - 1) // size) * size
        opened.expected = 0
        if expected - tokens < size:
            return None
        ago = self.clock.now - opened.evicted_at if opened.evicted_at else 0.0
        return Shortfall(expected - tokens, ago)

    def ended(self, sequence: Sequence) -> None:
        if (opened := self._open.pop(sequence.request.id, None)) is not None:
            session = opened.session
            session.open -= 1
            session.ended, session.counted = self.clock.now, 0.0

    # -- blocks -------------------------------------------------------------

    def left(self, sequence: Sequence, blocks: list[int]) -> None:
        session = self._session(sequence)
        line, found = self.follow(blocks)
        rest = blocks[found:]
        continues = line is not None and line.session is session and self._continued(line, sequence)
        if line is not None and found < line.end:
            tail = line
            owner = session if continues else Session(is_shared=True, ended=self.clock.now)
            line = self.split(tail, found - tail.start, owner)
            if continues:
                self.kill(tail)
        if line is not None and continues:
            self.renew(line)
            self.extend(line, rest)
        elif rest:
            line = self.add(session, found, rest, line)
        session.kv_blocks = len(blocks)
        if line is not None:
            prompt = len(sequence.request.prompt) // self.config.block_size
            line.keys = sequence.keys[line.start : min(prompt, line.end)]

    def _session(self, sequence: Sequence) -> Session:
        opened = self._open.get(sequence.request.id)
        return Session(ended=self.clock.now) if opened is None else opened.session

    def kept(self, sequence: Sequence, blocks: Blocks, tokens: int) -> None:
        session = self._session(sequence)
        start = tokens // self.config.block_size
        line = self.add(session, start, list(blocks), None)
        line.is_state = True
        session.state_blocks += line.most
        session.kv_blocks = max(session.kv_blocks, start)

    def used(self, sequence: Sequence, blocks: Blocks) -> None:
        line, session = self.line_of(blocks[0]), self._session(sequence)
        if line is not None and line.is_state and line.session is not session:
            line.session.state_blocks -= line.most
            session.state_blocks += line.most
            line.session = session
            self.renew(line)

    def gone(self, line: Line) -> None:
        if identity := line.identity:
            end = line.start + line.most
            self._gone[identity] = Gone(line.session, end, line.evicted_at)
            if len(self._gone) > REMEMBERED:
                self._gone.popitem(last=False)

    def clear(self) -> None:
        super().clear()
        self._gone.clear()

    # -- scores -------------------------------------------------------------

    def scores(self, lines: list[Line]) -> F64:
        if self.first.is_due(self.clock.now) or self.later.is_due(self.clock.now):
            self._learn()
        measured = [self._measure(line.session) for line in lines]
        kinds = np.array([kind for _, kind, _ in measured], np.intp)
        scales = np.array([scale for _, _, scale in measured])
        ages = self.clock.now - np.array([line.session.ended for line in lines])
        is_first = np.array([pauses is self.first for pauses, _, _ in measured])
        worth = np.empty(len(lines))
        for pauses, own in ((self.first, is_first), (self.later, ~is_first)):
            worth[own] = pauses.worth(kinds[own], ages[own] / scales[own]) / scales[own]
        worth[[line.session.open > 0 for line in lines]] = OPEN
        return worth * np.array([self._cost(line) for line in lines])

    def _measure(self, session: Session) -> tuple[Pauses, int, float]:
        """Where the pauses of a session are observed, its kind there, and their unit in seconds."""
        if session.turns < 1:
            return self.first, int(session.named), 1.0
        kind = SHARED if session.is_shared else min(session.turns.bit_length(), KINDS - 1)
        return self.later, kind, 2.0**session.pace

    def _cost(self, line: Line) -> float:
        """What losing the last block of a line costs, in blocks at the beginning of a prompt."""
        if line.is_dead:
            return 0.0
        cost = 1.0 + line.end * self.config.block_size / DEEP_TOKENS
        if line.end > line.prompt_end and not line.is_state:
            cost *= max(self._outputs_reused, SLOWLY)
        if self.config.state_blocks:
            session = line.session
            whole = session.kv_blocks + session.state_blocks
            cost *= session.kv_blocks / whole if session.state_blocks and whole else LONE_STATE
        return cost

    def loose_score(self, age_s: float) -> float:
        return float(self.first.worth(np.zeros(1, np.intp), np.array([age_s]))[0])

    def _learn(self) -> None:
        """Count the time that has passed without returns, and compute what follows from all."""
        self.drop_empty()
        known = [line.session for line in self.lines.values()]
        self._wait(known + [one.session for one in self._gone.values()])
        for pauses in (self.first, self.later):
            pauses.refresh(self.clock.now)

    def _wait(self, sessions: list[Session]) -> None:
        """Count the pauses of sessions up to now, as far as they have not been counted."""
        now = self.clock.now
        waited: dict[Pauses, list[tuple[int, float, float]]] = {self.first: [], self.later: []}
        for one in sessions:
            if not one.open and now - one.ended > one.counted:
                pauses, kind, scale = self._measure(one)
                waited[pauses].append((kind, one.counted / scale, (now - one.ended) / scale))
                one.counted = now - one.ended
        for pauses, found in waited.items():
            if found:
                kinds, since, until = zip(*found, strict=True)
                pauses.waited(np.array(kinds, np.intp), np.array(since), np.array(until))
