"""Free memory of this machine, and the attention groups that KV is sized for."""

import os
from collections import Counter
from pathlib import Path

from paceline.core.settings.config import CacheConfig, StepConfig
from paceline.core.settings.features import AttentionGroup
from paceline.core.settings.load import LoadConfig
from paceline.kv.cache import KVCache
from paceline.kv.connector import takes_groups
from paceline.kv.tables import BlockTables
from paceline.runner.models.config import ModelConfig
from paceline.runner.models.layer_groups import LayerGroups, Window, layer_groups, one_group
from paceline.runner.models.states.state_layout import RECURRENT_BYTES, StateLayout

MEMINFO, GROUP = Path("/proc/meminfo"), Path("/sys/fs/cgroup")


def free_bytes(meminfo: Path = MEMINFO, group: Path = GROUP) -> int:
    """Bytes that can be allocated without swapping, in the machine and in its container."""
    return min([_of_machine(meminfo), *_of_container(group)])


def _of_machine(meminfo: Path) -> int:
    """The page cache counts as free: the system drops it when memory is needed."""
    try:
        return 1024 * _numbers(meminfo)["MemAvailable:"]
    except (OSError, KeyError):  # this system has no /proc/meminfo
        pages = os.sysconf("SC_PHYS_PAGES") // 2  # how many are free is unknown
        return pages * os.sysconf("SC_PAGE_SIZE")


def _of_container(group: Path) -> list[int]:
    """Free bytes within the limits of cgroups, version 2 and version 1; empty without a limit."""
    found = [
        _within(group, "memory.max", "memory.current", "inactive_file"),
        _within(
            group / "memory",
            "memory.limit_in_bytes",
            "memory.usage_in_bytes",
            "total_inactive_file",
        ),
    ]
    return [one for one in found if one is not None]


def _within(folder: Path, limit: str, used: str, kept: str) -> int | None:
    try:
        most, in_use = (int((folder / name).read_text()) for name in (limit, used))
        return max(most - in_use + _numbers(folder / "memory.stat")[kept], 0)
    except (OSError, KeyError, ValueError):  # no such limit, or "max"
        return None


def _numbers(path: Path) -> dict[str, int]:
    """The first number of each line, by the word before it."""
    lines = (line.split() for line in path.read_text().splitlines())
    return {words[0]: int(words[1]) for words in lines if len(words) > 1}


def kv_groups(
    model: ModelConfig, load_config: LoadConfig, max_model_len: int, drafter_bytes: int = 0
) -> LayerGroups:
    """The groups of a model's layers. A window that no sequence outgrows is full attention.

    Some connectors, and drafters with KV of their own, need the blocks of all positions: then there
    is one group, whatever the windows.
    """
    if drafter_bytes or (load_config.kv_connector and not takes_groups(load_config.kv_connector)):
        return one_group(model.windows)
    seen: list[Window] = [
        None if one is None or one >= max_model_len else one for one in model.windows
    ]
    reads = [model.read_by(layer) for layer in range(model.layers)]
    own = [window for window, read in zip(seen, reads, strict=True) if read is None]
    return layer_groups(own).with_readers(reads)


def state_bytes(model: ModelConfig, value_bytes: int = RECURRENT_BYTES) -> int:
    """Memory of the state of one sequence; 0: no layer keeps states. `value_bytes` is the size of
    activations; on a CPU all of it is float32."""
    layout = StateLayout.of(model, value_bytes)
    return 0 if layout is None else layout.bytes


def attention_groups(groups: LayerGroups) -> tuple[AttentionGroup, ...]:
    """The same as the setting of a scheduler, in the order of their numbers."""
    return tuple(_group(window, count) for window, count in Counter(groups.windows).items())


def _group(window: Window, count: int) -> AttentionGroup:
    if window is None:
        return AttentionGroup(count=count)
    return AttentionGroup("sliding_window", window, count)


def tables_of_one(cache: CacheConfig, step: StepConfig) -> BlockTables:
    """Block tables of one sequence, to count the blocks that it takes at most."""
    return KVCache(cache, 1, step.max_model_len, 0, step.longest_row).tables


def longest_within(tables: BlockTables, blocks: int, most: int) -> int:
    """The length of the longest sequence, of `most` tokens or fewer, that takes so many blocks."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if tables.most_blocks(middle) <= blocks else (low, middle - 1)
    return low
