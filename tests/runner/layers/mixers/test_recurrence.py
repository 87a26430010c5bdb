"""Recurrences position by position and in chunks."""

import pytest
import torch

from paceline.runner.layers.mixers import recurrence
from paceline.runner.layers.mixers.recurrence import Recurrence, run, step

HEADS, KEY, VALUE = 3, 5, 7


def inputs(positions: int, width: int, is_corrected: bool) -> Recurrence:
    draw = torch.Generator().manual_seed(positions)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(positions, HEADS, *shape, generator=draw)

    rate = drawn(1).sigmoid() if is_corrected else None
    key = torch.nn.functional.normalize(drawn(KEY), dim=-1)
    return Recurrence(drawn(KEY), key, drawn(VALUE), -drawn(width).exp(), rate)


@pytest.mark.parametrize("width", [1, KEY])
@pytest.mark.parametrize("is_corrected", [False, True])
@pytest.mark.parametrize("positions", [1, 8, 21])
def test_chunks_are_as_steps(
    positions: int, is_corrected: bool, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recurrence, "CHUNK", 8)
    monkeypatch.setattr(recurrence, "BLOCK", 3)
    given = inputs(positions, width, is_corrected)
    begin = torch.randn(HEADS, KEY, VALUE, generator=torch.Generator().manual_seed(1))
    slow, quick = begin.clone(), begin.clone()
    found = run(quick, given)
    expected = torch.cat([step(slow[None], given.at(slice(i, i + 1))) for i in range(positions)])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(quick, slow, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("is_corrected", [False, True])
def test_a_step_by_hand(is_corrected: bool) -> None:
    """One head, a state of 1 x 1: 0.5 * 4 = 2, plus 3 * 10, or 3 * 0.25 * (10 - 3 * 2)."""
    rate = torch.full((1, 1, 1), 0.25) if is_corrected else None
    state = torch.full((1, 1, 1, 1), 4.0)
    query, key, value = (torch.full((1, 1, 1), float(one)) for one in (2, 3, 10))
    decay = torch.full((1, 1, 1), 0.5).log()
    found = step(state, Recurrence(query, key, value, decay, rate))
    expected = 2 + (3.0 if is_corrected else 30.0)
    assert state.item() == pytest.approx(expected)
    assert found.item() == pytest.approx(2 * expected)


@pytest.mark.parametrize("width", [1, KEY])
def test_strong_decays_do_not_overflow(width: int) -> None:
    given = inputs(40, width, is_corrected=True)
    strong = Recurrence(given.query, given.key, given.value, given.decay * 100, given.rate)
    assert run(torch.zeros(HEADS, KEY, VALUE), strong).isfinite().all()
