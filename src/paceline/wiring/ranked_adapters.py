"""Adapters of a model that is divided among ranks: each rank has its part of them."""

from dataclasses import dataclass
from itertools import count
from weakref import WeakValueDictionary

from paceline.core.errors import RequestError
from paceline.runner.adapters.host import HostAdapters
from paceline.runner.adapters.weights import AdapterWeights
from paceline.wiring.rank_wire import DropAdapter, KeepAdapter, ReadAdapter
from paceline.wiring.tensor_ranks import RankProcesses


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class RankedAdapter:
    """An adapter that all ranks have read. They forget it some time after this object is gone,
    unless it is kept."""

    number: int  # its name for the ranks
    own: AdapterWeights  # the part of rank 0

    @property
    def version(self) -> str:
        return self.own.version


class RankedAdapters:
    """See `AdapterHost`. Ranks get these messages among their plans, so all of them have an adapter
    from the same step on."""

    def __init__(self, own: HostAdapters, ranks: RankProcesses) -> None:
        self._own, self._ranks, self._numbers = own, ranks, count()
        self._read: WeakValueDictionary[int, RankedAdapter] = WeakValueDictionary()

    def read(self, path: str) -> RankedAdapter:
        """Read the files on all ranks. RequestError if a rank cannot."""
        number, held = next(self._numbers), tuple(self._read.keys())
        with self._ranks.together(ReadAdapter(number, path, held)) as versions:
            own = self._own.read(path)
        if any(version != own.version for version in versions):
            raise RequestError(f"{path} has changed while it was read; load the adapter again")
        found = self._read[number] = RankedAdapter(number, own)
        return found

    def keep(self, identity: str, adapter: RankedAdapter) -> None:
        self._own.keep(identity, adapter.own)
        self._ranks.send(KeepAdapter(identity, adapter.number))

    def drop(self, identity: str) -> None:
        self._own.drop(identity)
        self._ranks.send(DropAdapter(identity))
