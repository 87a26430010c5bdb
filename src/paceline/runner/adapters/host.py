"""The adapters in the memory of the host."""

from collections.abc import Callable
from pathlib import Path

from paceline.runner.adapters.targets import AdapterTargets
from paceline.runner.adapters.weights import AdapterWeights, read_adapter


class HostAdapters:
    """Adapters by identity. The engine decides which ones are kept: see `engine.core.adapters`."""

    def __init__(
        self,
        targets: AdapterTargets,
        max_lora_rank: int,
        form: Callable[[AdapterWeights], AdapterWeights] = lambda adapter: adapter,
    ) -> None:
        """`form` gives an adapter that was read the form in which the device needs it."""
        self._targets, self._most_rank, self._form = targets, max_lora_rank, form
        self._kept: dict[str, AdapterWeights] = {}

    def read(self, path: str) -> AdapterWeights:
        """Read the files of an adapter, on any thread. RequestError says what is wrong."""
        return self._form(read_adapter(Path(path), self._targets, self._most_rank))

    def keep(self, identity: str, adapter: AdapterWeights) -> None:
        self._kept[identity] = adapter

    def drop(self, identity: str) -> None:
        self._kept.pop(identity, None)

    def weights(self, identity: str) -> AdapterWeights:
        """The engine keeps the adapters of all open requests that may run."""
        return self._kept[identity]
