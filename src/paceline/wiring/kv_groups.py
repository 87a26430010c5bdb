"""How layers of a model share block tables, and the blocks that sequences take of all tables."""

from collections import Counter

from paceline.core.attention_group import AttentionGroup
from paceline.core.config import CacheConfig, LoadConfig, StepConfig
from paceline.kv.cache import KVCache
from paceline.kv.connector import takes_groups
from paceline.kv.tables import BlockTables
from paceline.runner.models.config import ModelConfig
from paceline.runner.models.layer_groups import LayerGroups, layer_groups


def kv_groups(
    model: ModelConfig, own: LoadConfig, max_model_len: int, drafter_bytes: int = 0
) -> LayerGroups:
    """The groups of a model's layers. A window that no sequence outgrows is full attention.

    Some connectors, and drafters with KV of their own, need the blocks of all positions: then there
    is one group, whatever the windows.
    """
    if drafter_bytes or (own.kv_connector and not takes_groups(own.kv_connector)):
        return LayerGroups.one(model.layers)
    seen = [None if one is None or one >= max_model_len else one for one in model.windows]
    return layer_groups(seen)


def attention_groups(groups: LayerGroups) -> tuple[AttentionGroup, ...]:
    """The same as the setting of a scheduler, in the order of their numbers."""
    return tuple(
        AttentionGroup(count=count)
        if window is None
        else AttentionGroup("sliding_window", window, count)
        for window, count in Counter(groups.windows).items()
    )


def tables_of_one(cache: CacheConfig, step: StepConfig) -> BlockTables:
    """Block tables of one sequence, which say how many blocks it takes at most."""
    return KVCache(cache, 1, step.max_model_len, 0, step.longest_row).tables


def longest_within(tables: BlockTables, blocks: int, most: int) -> int:
    """The length of the longest sequence, of `most` tokens or fewer, that takes so many blocks."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if tables.most_blocks(middle) <= blocks else (low, middle - 1)
    return low
