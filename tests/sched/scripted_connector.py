"""A connector that does what a test says, when it says so."""

from collections.abc import Mapping, Sequence
from typing import Any

from paceline import Request
from paceline.core.request import Finish
from paceline.core.settings.features import ConnectorConfig
from paceline.kv.connector import Connector, Transfer, TransferEnd


class ScriptedConnector(Connector):
    """Offers `supply` blocks, of which the device has some; None: ask later."""

    def __init__(self, supply: int | None = 0, **config: Any) -> None:
        super().__init__(ConnectorConfig("scripted", **config))
        self.supply = supply
        self.fetched: list[Transfer] = []
        self.stored: list[Transfer] = []
        self.kept: set[bytes] = set()
        self.forgotten: list[bytes] = []
        self.handed: Mapping[str, Any] | None = None
        self.finishes: list[tuple[Transfer, Finish]] = []
        self.asked = 0
        self._ended: list[TransferEnd] = []

    def offer(self, request: Request, keys: Sequence[bytes], have: int) -> int | None:
        self.asked += 1
        return None if self.supply is None else max(min(self.supply, len(keys)) - have, 0)

    def fetch(self, transfer: Transfer) -> None:
        self.fetched.append(transfer)

    def keep(self, keys: Sequence[bytes]) -> int:
        return next((at for at, key in enumerate(keys) if key not in self.kept), len(keys))

    def store(self, transfer: Transfer) -> None:
        self.stored.append(transfer)
        self.kept.update(transfer.keys)

    def finished(self, transfer: Transfer, finish: Finish) -> Mapping[str, Any] | None:
        self.finishes.append((transfer, finish))
        return self.handed

    def forget(self, keys: Sequence[bytes]) -> None:
        self.forgotten += keys

    def poll(self) -> Sequence[TransferEnd]:
        ended, self._ended = self._ended, []
        return ended

    def end(self, transfer: Transfer, bad: int | None = None, reason: str = "") -> None:
        """The next poll returns the end of a transfer."""
        self._ended.append(TransferEnd(transfer.ticket, bad, reason))

    def end_all(self) -> None:
        for transfer in (*self.fetched, *self.stored):
            self.end(transfer)
        self.fetched, self.stored = [], []
