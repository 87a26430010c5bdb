"""States of slots, and copies of them in the order of a plan."""

from collections.abc import Sequence

import pytest
import torch

from paceline.runner.kv_store import KVStore
from paceline.runner.models.config import ModelConfig
from paceline.runner.models.states.state_layout import StateLayout
from paceline.runner.models.states.state_sizes import StateTensor
from paceline.runner.state_store import StateStore
from tests.conformance.architectures import Case
from tests.runner.support import tiny

LAYOUT = StateLayout(
    ((StateTensor((2, 3), True), StateTensor((5,), False)), (), (StateTensor((4, 4), True),)),
    torch.bfloat16.itemsize,
)


def filled(slots: int, block_bytes: int = 4) -> StateStore:
    store = StateStore(LAYOUT, slots, torch.bfloat16, block_bytes=block_bytes)
    store.content.copy_(torch.arange(store.content.numel()).view_as(store.content) % 251)
    return store


def test_each_layer_has_tensors_of_its_own() -> None:
    store = StateStore(LAYOUT, 3, torch.bfloat16)
    recurrent, tail = store.of(0)
    assert (recurrent.shape, recurrent.dtype) == ((3, 2, 3), torch.float32)
    assert (tail.shape, tail.dtype) == ((3, 5), torch.bfloat16)
    assert store.of(1) == ()
    recurrent[1], tail[2], store.of(2)[0][0] = 1.0, 2.0, 3.0
    sums = [[float(one.sum()) for one in store.of(layer)] for layer in (0, 2)]
    assert sums == [[6.0, 10.0], [48.0]]


def test_only_the_slots_that_are_named_are_cleared() -> None:
    store, before = filled(4), filled(4)
    store.clear(torch.tensor([3, 1]))
    assert not store.content[[1, 3]].any()
    assert torch.equal(store.content[[0, 2]], before.content[[0, 2]])


@pytest.mark.parametrize("pairs", [[], [(0, 2)], [(0, 1), (1, 0)], [(0, 1), (0, 2), (2, 3)]])
def test_all_sources_are_read_before_any_copy(pairs: Sequence[tuple[int, int]]) -> None:
    store, before = filled(4), filled(4)
    store.copy(pairs)
    sources = {slot: slot for slot in range(4)} | {target: source for source, target in pairs}
    for slot, source in sources.items():
        assert torch.equal(store.content[slot], before.content[source])


@pytest.mark.parametrize("block_size", [1, 3, 64])
def test_states_come_back_from_blocks(block_size: int) -> None:
    """A state that takes several blocks, or a part of one."""
    kv = KVStore(tiny(), 9, block_size)
    store, before = (filled(4, kv.block_bytes) for _ in range(2))
    each = -(-LAYOUT.bytes // kv.block_bytes)
    first, second = tuple(range(each))[::-1], tuple(range(each, 2 * each))
    store.save(((1, first), (3, second)), kv)
    store.clear(torch.arange(4))
    store.load(((0, second), (2, first), (3, first)), kv)
    for slot, source in ((0, 3), (2, 1), (3, 1)):
        assert torch.equal(store.content[slot], before.content[source])
    assert not store.content[1].any()


@pytest.mark.parametrize(("architecture", "layers"), [("llama", 0), ("qwen3_5", 2)])
def test_layers_with_states_have_some(architecture: str, layers: int) -> None:
    config: ModelConfig = Case(architecture).config()
    layout = StateLayout.of(config, 4)
    assert (0 if layout is None else sum(map(bool, layout.tensors))) == layers
