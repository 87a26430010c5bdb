"""The connector that the settings name, between a scheduler and the blocks of a runner."""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from paceline.core.attention_group import FULL_ATTENTION
from paceline.core.config import CacheConfig, LoadConfig
from paceline.kv import connector as port
from paceline.kv.connector import BlockMemory, Bytes, Connector
from paceline.runner.block_bytes import BlockBytes
from paceline.sched.scheduler import Scheduler
from paceline.wiring.kv_transfer_config import connector_config
from paceline.wiring.ranked_blocks import RankedBlocks


class BlockOwner(Protocol):
    """A runner whose blocks other threads may copy."""

    def block_bytes(self) -> BlockBytes | RankedBlocks: ...


class DeviceBlocks:
    """The blocks of a device as a connector sees them."""

    def __init__(self, blocks: BlockBytes | RankedBlocks, config: CacheConfig) -> None:
        self._blocks, self.block_bytes = blocks, blocks.block_bytes
        name = config.model_fingerprint or "unnamed"
        self.layout = f"{name}-{config.block_size}x{self.block_bytes}"
        if isinstance(blocks, RankedBlocks):  # the heads of a block lie in another order
            self.layout += f"-{blocks.ranks}ranks"
        if config.attention_groups != FULL_ATTENTION:  # which layers a block is of follows from it
            kinds = (f"{one.count}{one.kind[0]}{one.window}" for one in config.attention_groups)
            self.layout = "-".join((self.layout, *kinds))

    @property
    def memory(self) -> BlockMemory | None:
        if isinstance(self._blocks, RankedBlocks):
            return None  # each rank has memory of its own
        content = self._blocks.content
        device: Any = content.device.type
        index = content.device.index or 0
        return BlockMemory(content.data_ptr(), len(content), self.block_bytes, device, index)

    def host_memory(self, rows: int) -> Bytes:
        return self._blocks.host_memory(rows)

    def read(self, blocks: Sequence[int]) -> Bytes:
        return self._blocks.read(blocks)

    def read_into(self, blocks: Sequence[int], rows: Iterable[Bytes]) -> None:
        self._blocks.read_into(blocks, rows)

    def write(self, blocks: Sequence[int], rows: Iterable[Bytes]) -> None:
        self._blocks.write(blocks, rows)


def named_connector(own: LoadConfig) -> Connector | None:
    """The connector of the settings. ConfigError if they are wrong: call it early."""
    config = connector_config(own.kv_connector, own.kv_transfer_config)
    return port.load(config) if config.kv_connector else None


def connect(
    connector: Connector | None, scheduler: Scheduler, runner: BlockOwner
) -> DeviceBlocks | None:
    """Give the scheduler its connector. Returns the blocks to attach it to."""
    if connector is None:
        return None
    scheduler.connect(connector)
    return DeviceBlocks(runner.block_bytes(), scheduler.config.cache)
