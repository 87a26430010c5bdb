import pytest
import torch
from torch import Tensor

from paceline.runner.attention import native as module
from paceline.runner.attention.native import Native, NativeStep, tiles_of
from paceline.runner.attention.paged import PagedStep
from paceline.runner.attention_backend import load
from paceline.runner.kv_store import KVStore
from paceline.runner.native.library import is_available
from tests.runner.support import Piece, batch_of, tiny

CONFIG = tiny(head_dim=72)  # more than a vector, and some


def test_rows_are_cut_into_tiles() -> None:
    assert tiles_of([0, 1, 6, 10], 4) == [(0, 0, 1), (1, 1, 4), (1, 5, 1), (2, 6, 4)]


def test_what_the_kernels_do_not_know_is_paged() -> None:
    batch = batch_of([Piece([1], 0, [0])], 4)
    kv = KVStore(CONFIG, 2, 4, torch.bfloat16)
    assert isinstance(Native().prepare(batch, kv), PagedStep)


def test_without_kernels_everything_is_paged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "is_available", lambda: False)
    batch = batch_of([Piece([1], 0, [0])], 4)
    assert isinstance(Native().prepare(batch, KVStore(CONFIG, 2, 4)), PagedStep)


@pytest.mark.skipif(not is_available(), reason="needs a C compiler")
@pytest.mark.parametrize("window", [None, 5, 70])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(4, 2, 72), (2, 2, 70), (3, 1, 24)])
def test_a_position_is_the_same_bits_in_any_step(
    heads: int, kv_heads: int, head_dim: int, window: int | None
) -> None:
    """Also where one query goes alone, or three do, and where head_dim is no whole vectors."""
    shape = {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head_dim}
    config = tiny(**shape)
    kv = KVStore(config, 60, 4)
    kv.content.normal_(generator=torch.Generator().manual_seed(2))
    query = torch.randn(150, heads, head_dim)
    blocks = list(range(40))

    def attend(*spans: range) -> Tensor:
        pieces = [Piece([0] * len(span), span.start, blocks) for span in spans]
        prepared = load("native").prepare(batch_of(pieces, 4), kv)
        assert isinstance(prepared, NativeStep)
        asked = torch.cat([query[span.start : span.stop] for span in spans])
        return prepared.attend(asked, 1, window, 0.2)

    whole = attend(range(150))
    for step in (1, 3, 64):
        spans = [range(at, min(at + step, 150)) for at in range(0, 150, step)]
        assert torch.equal(torch.cat([attend(span) for span in spans]), whole)
        assert torch.equal(attend(*spans), whole)


@pytest.mark.skipif(not is_available(), reason="needs a C compiler")
def test_threads_share_the_work_and_change_nothing() -> None:
    kv = KVStore(CONFIG, 60, 4)
    kv.content.normal_(generator=torch.Generator().manual_seed(2))
    pieces = [Piece([0] * 5, first, list(range(40))) for first in range(0, 150, 10)]
    prepared = load("native").prepare(batch_of(pieces, 4), kv)
    query = torch.randn(5 * len(pieces), CONFIG.heads, CONFIG.head_dim)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(prepared.attend(query, 1, None, 0.2))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


@pytest.mark.skipif(not is_available(), reason="needs a C compiler")
def test_scores_of_any_size() -> None:
    """One key outweighs all others, wherever it stands."""
    kv = KVStore(CONFIG, 60, 4)
    kv.content.normal_(generator=torch.Generator().manual_seed(2))
    batch = batch_of([Piece([0], 149, list(range(38)))], 4)
    query = torch.ones(1, CONFIG.heads, CONFIG.head_dim)
    for place in (0, 63, 64, 149):
        kv.content[place // 4, 0, place % 4, : kv.kv_heads] = 1e4
        got = load("native").prepare(batch, kv).attend(query, 0, None, 1.0)
        values = kv.content[place // 4, 0, place % 4, kv.kv_heads :]
        torch.testing.assert_close(got[0], values.repeat_interleave(2, dim=0))
        kv.content[place // 4, 0, place % 4, : kv.kv_heads] = -1e4
