"""A connector that takes its time, fails, and asks for patience, all from a seed."""

from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from paceline.core.request import Finish, Request
from paceline.core.settings.features import ConnectorConfig
from paceline.kv.connector import Connector, Transfer, TransferEnd
from paceline.kv.keys import KEY_BYTES
from paceline.testing.oracle import OracleRunner

UNWRITTEN = -9  # what a cell holds while it is being loaded, and after a load that failed


@dataclass(slots=True, eq=False)
class Underway:
    """A transfer, and what to do at its end."""

    transfer: Transfer
    is_store: bool
    kept: list[list[int]] | None = None  # what blocks that are handed over must hold until the end


class ErraticConnector(Connector):
    """Reads blocks at the end of a store and writes them at the end of a load, as late as it may:
    a block that is not fenced until then is noticed by the oracle. Some hand over blocks of
    requests that end, and keep them for a while."""

    takes_groups = takes_states = True
    medium = "STORAGE"

    def __init__(self, runner: OracleRunner, seed: int, seen: Counter[str]) -> None:
        super().__init__(ConnectorConfig("erratic"))
        self._runner, self._random, self._seen = runner, Random(f"connector {seed}"), seen
        r = self._random
        self._most = r.choice([4, 32, 4096])  # contents
        self._later, self._slow, self._failing = r.choice([0.0, 0.3]), r.random(), r.random() * 0.5
        self._content: OrderedDict[bytes, list[int]] = OrderedDict()
        self.underway: list[Underway] = []
        self.asked_later = False  # since the latest poll
        self._handing = Random(f"hand over {seed}")
        self.hands_over = self._handing.random() < 0.4

    def offer(self, request: Request, keys: Sequence[bytes], have: int) -> int | None:
        if self._random.random() < self._later:
            self._seen["asked later"] += 1
            self.asked_later = True
            return None
        return self._leading(keys[have:])

    def find(self, request: Request, keys: Sequence[bytes]) -> int | None:
        if self._random.random() < self._later:
            self.asked_later = True
            return None
        found = next((at for at, key in enumerate(keys) if key in self._content), len(keys))
        self._seen["states found"] += found < len(keys)
        return found

    def fetch(self, transfer: Transfer) -> None:
        for block in transfer.blocks:
            self._runner.cells[block] = [UNWRITTEN] * self._runner.block_size
        self.underway.append(Underway(transfer, is_store=False))

    def keep(self, keys: Sequence[bytes]) -> int:
        kept = self._leading(keys)
        for key in keys[:kept]:
            self._content.move_to_end(key)
        return kept

    def store(self, transfer: Transfer) -> None:
        self.underway.append(Underway(transfer, is_store=True))

    def finished(self, transfer: Transfer, finish: Finish) -> Mapping[str, Any] | None:
        if not transfer.blocks or self._handing.random() < 0.3:
            return None
        self._seen["handed over"] += 1
        kept = [list(self._runner.cells[block]) for block in transfer.blocks]
        self.underway.append(Underway(transfer, is_store=True, kept=kept))
        return {"blocks": len(transfer.blocks)}

    def poll(self) -> list[TransferEnd]:
        self.asked_later = False
        done = [one for one in self.underway if self._random.random() >= self._slow * 0.9]
        self.underway = [one for one in self.underway if one not in done]
        return [self._stored(one) if one.is_store else self._loaded(one) for one in done]

    @property
    def loading(self) -> list[str]:
        """Requests whose KV is being loaded."""
        return [one.transfer.request.id for one in self.underway if not one.is_store]

    def unlucky(self) -> list[str]:
        """Those of them that are aborted now."""
        return [one for one in self.loading if self._random.random() < 0.1]

    def forget(self, keys: Sequence[bytes]) -> None:
        for key in keys:
            self._content.pop(key, None)
        self.changed(keys, False)

    def clear(self) -> None:
        self._content.clear()

    def keys(self) -> set[bytes]:
        """Of the first attention group with full attention."""
        return {key for key in self._content if len(key) == KEY_BYTES}

    def _leading(self, keys: Sequence[bytes]) -> int:
        """How many of the first keys it has."""
        return next((at for at, key in enumerate(keys) if key not in self._content), len(keys))

    def _stored(self, one: Underway) -> TransferEnd:
        transfer = one.transfer
        if one.kept is not None:
            assert one.kept == [self._runner.cells[block] for block in transfer.blocks]
            return TransferEnd(transfer.ticket)
        for key, block in zip(transfer.keys, transfer.blocks, strict=True):
            self._content[key] = list(self._runner.cells[block])
        self.changed(transfer.keys, True)
        while len(self._content) > self._most:
            self.changed([self._content.popitem(last=False)[0]], False)
        return TransferEnd(transfer.ticket)

    def _loaded(self, one: Underway) -> TransferEnd:
        transfer, bad = one.transfer, None
        have = self._leading(transfer.keys)  # some may be evicted by now
        if self._random.random() < self._failing:
            have = min(have, self._random.randint(0, len(transfer.keys)))
        for key, block in zip(transfer.keys[:have], transfer.blocks, strict=False):
            self._runner.cells[block] = list(self._content[key])
        if have < len(transfer.keys):
            self._seen["bad loads"] += 1
            bad = have
        self._seen["loads"] += 1
        return TransferEnd(transfer.ticket, bad, "it is erratic" if bad is not None else "")
