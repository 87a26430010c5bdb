"""Memory that other processes read, by NIXL: registered blocks, reads and notifications."""

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from paceline.core.plugins import library
from paceline.kv.connector import BlockMemory

log = logging.getLogger(__name__)

ReadState = Literal["running", "done", "failed"]
STATES: dict[str, ReadState] = {"DONE": "done", "PROC": "running"}
SEGMENTS = {"cpu": "DRAM", "cuda": "VRAM"}


@dataclass(frozen=True, slots=True)
class PeerMemory:
    """What a process must know of another one to read its blocks."""

    engine_id: str
    layout: str  # of a block; only equal ones can be exchanged
    memory: BlockMemory
    metadata: bytes  # NIXL's own

    def header(self) -> dict[str, Any]:
        """Everything but the metadata, as plain values."""
        return {
            "engine_id": self.engine_id,
            "layout": self.layout,
            "memory": asdict(self.memory),
        }

    @staticmethod
    def of(header: dict[str, Any], metadata: bytes) -> "PeerMemory":
        memory = BlockMemory(**header["memory"])
        return PeerMemory(header["engine_id"], header["layout"], memory, metadata)


class NixlLibrary:
    """The library, whose errors are raised as OSError."""

    def __init__(self) -> None:
        before = logging.raiseExceptions
        self.module = library(("nixl_cu12", "nixl_cu13"), "nixl")
        logging.raiseExceptions = before  # the import changes it
        logging.getLogger("nixl").setLevel(logging.WARNING)
        bindings = vars(import_module(f"{self.module.__name__}._bindings")).values()
        kinds = [one for one in bindings if isinstance(one, type) and issubclass(one, Exception)]
        self._errors = tuple(kinds)

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except self._errors as error:
            raise OSError(f"{type(error).__name__}: {error}") from error


class BlockReader:
    """Reads blocks of other processes into blocks of this one. Only one thread may use it."""

    def __init__(self, engine_id: str, layout: str, memory: BlockMemory) -> None:
        self._nixl = nixl = NixlLibrary()
        self.engine_id, self.layout, self.memory = engine_id, layout, memory
        # Its own thread for progress would take a whole core: calls of the reader make progress.
        settings = nixl.module.nixl_agent_config(enable_prog_thread=False, backends=["UCX"])
        self._agent = agent = nixl.call(nixl.module.nixl_agent, engine_id, settings)
        region = [(memory.address, memory.blocks * memory.block_bytes, memory.index, "")]
        self._region = nixl.call(agent.register_memory, region, SEGMENTS[memory.device])
        blocks = descriptors(memory), SEGMENTS[memory.device]
        self._own = nixl.call(agent.prep_xfer_dlist, "", *blocks)
        self._peers: dict[str, Any] = {}  # by engine id: descriptors of all blocks

    def described(self) -> PeerMemory:
        """What others need to read the blocks of this process."""
        metadata = self._nixl.call(self._agent.get_agent_metadata)
        return PeerMemory(self.engine_id, self.layout, self.memory, metadata)

    def connect(self, peer: PeerMemory) -> None:
        """Make the blocks of another process readable."""
        blocks = descriptors(peer.memory), SEGMENTS[peer.memory.device]
        name = self._nixl.call(self._agent.add_remote_agent, peer.metadata)
        self._peers[peer.engine_id] = self._nixl.call(self._agent.prep_xfer_dlist, name, *blocks)

    def forget(self, engine_id: str) -> None:
        """A process is gone; no read from it is under way."""
        if (blocks := self._peers.pop(engine_id, None)) is not None:
            with suppress(OSError):
                self._nixl.call(blocks.release)
            with suppress(OSError):
                self._nixl.call(self._agent.remove_remote_agent, engine_id)

    def read(
        self, engine_id: str, theirs: Sequence[int], ours: Sequence[int], note: bytes
    ) -> "BlockRead":
        """Begin to read blocks. The other process gets the note when all have arrived."""
        ends = np.array(ours, np.int32), self._peers[engine_id], np.array(theirs, np.int32)
        handle = self._nixl.call(self._agent.make_prepped_xfer, "READ", self._own, *ends, note)
        return BlockRead(self._nixl, self._agent, handle)

    def notes(self) -> list[bytes]:
        """The notes of reads from this process that ended since the previous call."""
        try:
            found: dict[str, list[bytes]] = self._nixl.call(self._agent.get_new_notifs)
        except OSError as error:
            log.warning("%s", error)  # what is lost with it ends with its lease
            return []
        return [note for notes in found.values() for note in notes]

    def close(self) -> None:
        for engine_id in list(self._peers):
            self.forget(engine_id)
        with suppress(OSError):
            self._nixl.call(self._own.release)
            self._nixl.call(self._agent.deregister_memory, self._region)


class BlockRead:
    """A read that was begun. Its blocks may be written until it is over."""

    def __init__(self, nixl: NixlLibrary, agent: Any, handle: Any) -> None:
        self._nixl, self._agent, self._handle = nixl, agent, handle
        self._state: ReadState = self._state_by(agent.transfer)

    def state(self) -> ReadState:
        if self._state == "running":
            self._state = self._state_by(self._agent.check_xfer_state)
        return self._state

    def end(self) -> bool:
        """Release it, and stop it if it runs. False if it cannot be stopped yet."""
        try:
            self._nixl.call(self._handle.release)
        except OSError:
            return self.state() != "running"
        return True

    def _state_by(self, ask: Callable[[Any], str]) -> ReadState:
        try:
            return STATES.get(self._nixl.call(ask, self._handle), "failed")
        except OSError:
            return "failed"


def descriptors(memory: BlockMemory) -> npt.NDArray[np.uint64]:
    """Address, length and device of each block, [blocks, 3]."""
    found = np.empty((memory.blocks, 3), np.uint64)
    offsets = np.arange(memory.blocks, dtype=np.uint64) * np.uint64(memory.block_bytes)
    found[:, 0] = np.uint64(memory.address) + offsets
    found[:, 1:] = memory.block_bytes, memory.index
    return found
