"""All layers in one call: the same bits, whatever else a step computes."""

import pytest
import torch
from torch import Tensor

from paceline.runner.attention_backend import load
from paceline.runner.kv_store import KVStore
from paceline.runner.layers.native_stack import NATIVE
from paceline.runner.layers.norm import LayerInputs
from paceline.runner.models.model import Model
from paceline.runner.models.traits import find
from paceline.runner.native.library import is_available
from paceline.runner.weights.dummy import Dummy
from tests.conformance.architectures import OWN_SIZES, Case, architectures, spec_of
from tests.conformance.native_backend import FourBits
from tests.runner.support import Piece, batch_of, tiny

if not is_available():
    pytest.skip("needs a C compiler", allow_module_level=True)


def model_of(family: str, kind: type[Dummy]) -> Model:
    config = tiny(
        architectures=[f"{family}ForCausalLM"],
        hidden_size=64,
        head_dim=24,
        num_hidden_layers=7,
        sliding_window=5,
        **OWN_SIZES.get(family, {}),
    )
    return Model.load(kind(config), weights="int8")


def blocks(row: int) -> list[int]:
    return list(range(6 * row, 6 * row + 6))


PROMPTS = [[(7 * row + n) % 61 for n in range(5 + 4 * row)] for row in range(5)]


def run(model: Model, attention: str, pieces: list[Piece], kv: KVStore) -> Tensor:
    batch = batch_of(pieces, 4)
    return model.logits(model.forward(batch, kv, load(attention))[batch.sample_at])


FAMILIES = [
    one
    for one in architectures()
    if not find(one).vision and NATIVE.supports(spec_of(Case(one))) is None
]


@pytest.mark.parametrize("kind", [Dummy, FourBits])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_bits_alone_batched_and_in_chunks(family: str, kind: type[Dummy]) -> None:
    model = model_of(family, kind)
    kv = KVStore(model.config, 30, 4)
    pieces = [Piece(prompt, 0, blocks(row)) for row, prompt in enumerate(PROMPTS)]
    together = run(model, "native", pieces, kv)
    for row, prompt in enumerate(PROMPTS):
        kv = KVStore(model.config, 30, 4)
        alone = run(model, "native", [Piece(prompt, 0, blocks(row))], kv)
        assert torch.equal(alone[0], together[row])
        kv = KVStore(model.config, 30, 4)
        parts = [Piece(prompt[at : at + 2], at, blocks(row)) for at in range(0, len(prompt), 2)]
        chunked = [run(model, "native", [part], kv)[0] for part in parts]
        assert torch.equal(chunked[-1], together[row])


@pytest.mark.parametrize("kind", [Dummy, FourBits])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_bits_where_only_some_positions_are_wanted(family: str, kind: type[Dummy]) -> None:
    """In any order, several times, more of them than there are, and none."""
    model, attention = model_of(family, kind), load("native")
    pieces = [Piece(prompt, 0, blocks(row)) for row, prompt in enumerate(PROMPTS)]
    batch = batch_of(pieces, 4)
    all_kv = KVStore(model.config, 30, 4)
    every = model.forward(batch, all_kv, attention)
    last = batch.positions - 1
    for wanted in ([last], [last, 7, 7, 0], [3] * (2 * last), []):
        for dtype in (torch.int32, torch.int64):
            kv = KVStore(model.config, 30, 4)
            found = model.forward(batch, kv, attention, torch.tensor(wanted, dtype=dtype))
            assert torch.equal(found, every[wanted])
            assert torch.equal(kv.content, all_kv.content)


def test_where_nothing_is_wanted_the_end_of_the_last_layer_is_left_out() -> None:
    """What comes before it is the same in place, whoever is wanted."""
    model = model_of("llama", Dummy)
    batch = batch_of([Piece(PROMPTS[4], 0, blocks(4))], 4)
    left = []
    for wanted in (None, torch.tensor([0]), torch.tensor([], dtype=torch.int64)):
        kv = KVStore(model.config, 30, 4)
        hidden = torch.nn.functional.embedding(batch.tokens, model._embedding)
        model._layers(hidden, batch, kv, load("native").prepare(batch, kv), wanted)
        left.append(hidden)
    assert torch.equal(left[1], left[2])
    assert not torch.equal(left[0], left[1])


@pytest.mark.parametrize("family", ["llama", "mixtral"])
def test_threads_change_nothing(family: str) -> None:
    model = model_of(family, FourBits)
    pieces = [Piece(prompt, 0, blocks(row)) for row, prompt in enumerate(PROMPTS)]
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(run(model, "native", pieces, KVStore(model.config, 30, 4)))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


@pytest.mark.parametrize("layers", [(2, 3, 5), (0, 6), (6, 1)])
def test_what_layers_read_can_be_kept(layers: tuple[int, ...]) -> None:
    """The result is the same, and torch keeps the same."""
    model = model_of("Gemma3", Dummy)
    width, batch = model.config.width, batch_of([Piece(PROMPTS[2], 0, blocks(0))], 4)
    found: dict[str, LayerInputs] = {}
    for attention in ("native", "paged"):
        kept = LayerInputs(layers, torch.empty(batch.positions, len(layers) * width))
        stores = KVStore(model.config, 6, 4), KVStore(model.config, 6, 4)
        plain = model.forward(batch, stores[0], load(attention), batch.sample_at)
        hidden = model.forward(batch, stores[1], load(attention), batch.sample_at, kept)
        assert torch.equal(hidden, plain)
        assert torch.equal(stores[0].content, stores[1].content)
        found[attention] = kept
    torch.testing.assert_close(found["native"].rows, found["paged"].rows, rtol=2e-2, atol=2e-2)
