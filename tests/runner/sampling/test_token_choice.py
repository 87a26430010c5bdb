"""Random bits depend on seed and position alone, and draws follow the weights."""

from collections import Counter
from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor

from paceline.runner.sampling import token_choice as draws
from paceline.runner.sampling.token_choice import (
    CELL_UNIT,
    GAMMA,
    HALF,
    UNIT,
    Greedy,
    MinP,
    RandomDraw,
    TopK,
    TopP,
    by_cells,
    draw,
    key_of,
    largest,
    pick,
    random_words,
    relative_weights,
    shifted,
)

MASK = (1 << 64) - 1
MANY = 1 << 16
SEEDS = [0, 1, 2, 3, 1234, -1, 2**63, 2**80 + 5]


def mixed(word: int) -> int:
    """The output function again, on Python's integers."""
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & MASK
    return word ^ (word >> 31)


def words_of(seed: int, count: int = MANY) -> Tensor:
    positions = torch.arange(count)
    return random_words(torch.full((count,), key_of(seed)), positions)


def words_across(position: int, count: int = MANY // 8) -> Tensor:
    """One position of many neighbouring seeds."""
    keys = torch.tensor([key_of(seed) for seed in range(count)])
    return random_words(keys, torch.full((count,), position))


def halves(words: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Both 32-bit halves as numbers in [0, 1)."""
    return (shifted(words, 32).numpy() / 2.0**32, (words & HALF).numpy() / 2.0**32)


def surprise(counts: np.ndarray, expected: np.ndarray | float) -> float:
    """How many standard deviations a chi-square lies above its mean."""
    squares = ((counts - expected) ** 2 / expected).sum()
    freedom = counts.size - 1
    return float((squares - freedom) / np.sqrt(2 * freedom))


# -- bits -------------------------------------------------------------------


def test_the_first_number_of_seed_zero_is_the_published_one() -> None:
    assert key_of(0) & MASK == 0xE220A8397B1DCDAF


@pytest.mark.parametrize("seed", SEEDS)
def test_bits_are_those_of_the_counter(seed: int) -> None:
    key = mixed((seed + GAMMA) & MASK)
    assert key_of(seed) & MASK == key
    expected = [mixed((key + position * GAMMA) & MASK) for position in range(100)]
    assert [word & MASK for word in words_of(seed, 100).tolist()] == expected


def test_seeds_count_in_their_lowest_64_bits() -> None:
    assert key_of(-1) == key_of(2**64 - 1)
    assert key_of(2**64 + 7) == key_of(7)
    assert len({key_of(seed) for seed in range(1000)}) == 1000


def test_bits_do_not_depend_on_the_batch() -> None:
    keys = torch.tensor([key_of(seed) for seed in range(64)])
    positions = torch.arange(64) * 17
    together = random_words(keys, positions)
    for row in range(64):
        assert torch.equal(
            random_words(keys[row : row + 1], positions[row : row + 1])[0], together[row]
        )
    order = torch.randperm(64, generator=torch.Generator().manual_seed(1))
    assert torch.equal(random_words(keys[order], positions[order]), together[order])


@pytest.mark.parametrize("seed", SEEDS)
def test_numbers_are_uniform_along_positions(seed: int) -> None:
    for numbers in halves(words_of(seed)):
        counts = np.histogram(numbers, 256, (0.0, 1.0))[0]
        assert surprise(counts, MANY / 256) < 6


@pytest.mark.parametrize("position", [0, 1, 100, 8191])
def test_numbers_are_uniform_across_seeds(position: int) -> None:
    for numbers in halves(words_across(position)):
        counts = np.histogram(numbers, 64, (0.0, 1.0))[0]
        assert surprise(counts, len(numbers) / 64) < 6


def test_every_bit_is_as_often_one_as_zero() -> None:
    for words in (words_of(5), words_across(5)):
        ones = torch.stack([(words >> bit) & 1 for bit in range(64)]).double().mean(-1)
        assert (ones - 0.5).abs().max() < 5 * 0.5 / len(words) ** 0.5


@cache
def pairs() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    along, across = halves(words_of(11)), halves(words_across(11))
    other = halves(words_of(12))
    return {
        "neighbouring positions": (along[0][:-1], along[0][1:]),
        "neighbouring positions, fine": (along[1][:-1], along[1][1:]),
        "positions a block apart": (along[0][:-16], along[0][16:]),
        "neighbouring seeds": (across[0][:-1], across[0][1:]),
        "the same position of two seeds": (along[0], other[0]),
        "the next position of the next seed": (along[0][1:], other[0][:-1]),
        "the two halves of a word": (along[0], along[1]),
    }


@pytest.mark.parametrize("name", pairs())
def test_numbers_tell_nothing_of_each_other(name: str) -> None:
    first, second = pairs()[name]
    assert abs(np.corrcoef(first, second)[0, 1]) < 5 / np.sqrt(len(first))
    counts = np.histogram2d(first, second, 16, [(0.0, 1.0), (0.0, 1.0)])[0]
    assert surprise(counts, len(first) / 256) < 6


# -- picks and draws --------------------------------------------------------


def picks(weights: Sequence[float], numbers: Sequence[float]) -> list[int]:
    row = torch.tensor([weights])
    return [int(pick(row, UNIT, torch.tensor([at], dtype=torch.double))) for at in numbers]


def test_a_pick_is_where_the_cumulative_weight_passes_the_number() -> None:
    assert picks([0.25, 0.0, 0.5, 0.25], [0.0, 0.24, 0.25, 0.5, 0.74, 0.75, 0.99]) == [
        *(0, 0),
        *(2, 2, 2),
        *(3, 3),
    ]


def test_what_weighs_nothing_is_never_picked() -> None:
    last = 1 - 2.0**-32
    assert picks([0.0, 0.0, 1.0, 0.0], [0.0, 0.5, last]) == [2, 2, 2]
    assert picks([0.0, 1e-30, 1.0, 1e-30], [0.0, 0.5, last]) == [2, 2, 2]


def test_the_largest_vocabulary_does_not_overflow() -> None:
    row = torch.ones(1, 1 << 18)
    at = torch.tensor([1 - 2.0**-32], dtype=torch.double)
    assert int(pick(row, UNIT, at)) == (1 << 18) - 1
    assert int(pick(torch.ones(1, 64), CELL_UNIT, at)) == 63


@pytest.mark.parametrize("vocab", [1, 2, 101, 96, 128, 640])
def test_draws_follow_the_weights(vocab: int) -> None:
    generator = torch.Generator().manual_seed(vocab)
    weights = torch.rand(vocab, generator=generator) ** 3 + 0.01
    weights /= weights.max()
    found = draw(weights.expand(MANY, vocab), words_of(vocab))
    counts = np.bincount(found.numpy(), minlength=vocab)
    expected = (weights.double() / weights.double().sum()).numpy() * MANY
    assert len(counts) == vocab
    if vocab > 1:
        assert surprise(counts, expected) < 6


def test_a_rare_cell_is_drawn_from_by_its_own_weights() -> None:
    weights = torch.zeros(1, 128)
    weights[0, 0] = 1.0
    weights[0, 64:66] = torch.tensor([3e-5, 1e-5])
    words = words_of(3, 1 << 22)
    rare = words[shifted(words, 32).double() * 2.0**-32 > 1 - 3e-5]
    assert len(rare) > 80
    counts = Counter(draw(weights.expand(len(rare), 128), rare).tolist())
    assert counts.keys() == {64, 65}
    assert 0.6 < counts[64] / len(rare) < 0.9


# -- the likeliest ----------------------------------------------------------


@pytest.mark.parametrize("vocab", [1, 7, 101, 128, 4096, 5000])
def test_greedy_takes_the_first_of_the_largest(vocab: int) -> None:
    generator = torch.Generator().manual_seed(vocab)
    logits = torch.randint(0, 6, (200, vocab), generator=generator).float()
    ids, peak = Greedy(slice(0, 200)).choose(logits, torch.zeros(200, dtype=torch.long))
    assert ids.tolist() == [int(np.argmax(row)) for row in logits.numpy()]
    assert torch.equal(peak, logits.amax(-1))


def test_greedy_sees_what_is_not_a_number() -> None:
    logits = torch.zeros(3, 256)
    logits[1, 200] = float("nan")
    logits[2] = -torch.inf
    _, peak = Greedy(slice(0, 3)).choose(logits, torch.zeros(3, dtype=torch.long))
    assert peak[0] == 0.0
    assert peak[1].isnan()
    assert peak[2] == -torch.inf


# -- filters ----------------------------------------------------------------


def column(*values: float, kind: torch.dtype = torch.double) -> Tensor:
    return torch.tensor(values, dtype=kind)[:, None]


WEIGHTS = torch.tensor([[0.1, 1.0, 0.2, 0.4, 0.2, 0.1]])  # sum: 2


@pytest.mark.parametrize(
    ("count", "share", "smallest"),
    [
        (1, 1.0, 1.0),
        (2, 1.0, 0.4),
        (3, 1.0, 0.2),
        (4, 1.0, 0.2),
        (5, 1.0, 0.1),
        (6, 1.0, 0.1),
        (2, 0.7, 1.0),  # 1.0 of 1.4 is 0.71
        (2, 0.72, 0.4),
        (4, 0.77, 0.4),  # 1.4 of 1.8 is 0.78
        (4, 0.79, 0.2),
        (4, 1e-9, 1.0),
    ],
)
def test_top_k_keeps_the_k_largest_and_their_share(
    count: int, share: float, smallest: float
) -> None:
    for most in (count, 6):  # another row may ask for more
        kept = TopK(column(count, kind=torch.long), most, column(share)).smallest(WEIGHTS)
        assert kept.item() == pytest.approx(smallest)


@pytest.mark.parametrize(
    ("share", "smallest"),
    [(1e-9, 1.0), (0.499, 1.0), (0.501, 0.4), (0.699, 0.4), (0.701, 0.2), (0.91, 0.1)],
)
def test_top_p_keeps_the_largest_that_make_up_a_share(share: float, smallest: float) -> None:
    assert TopP(column(share)).smallest(WEIGHTS).item() == pytest.approx(smallest)


def test_top_p_is_the_same_whether_few_are_looked_at_or_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(64, 3000, generator=generator) * torch.linspace(0.1, 8, 64)[:, None]
    weights = relative_weights(logits - logits.amax(-1, keepdim=True))
    share = torch.rand(64, 1, generator=generator).double()
    few = torch.cat([TopP(share[row, None]).smallest(weights[row, None]) for row in range(64)])
    together = TopP(share).smallest(weights)
    monkeypatch.setattr(draws, "FEW", 3000)
    everything = TopP(share).smallest(weights)
    assert torch.equal(few, together)
    assert torch.equal(few, everything)
    kept = torch.where(weights >= few, weights, 0.0).double().sum(-1, keepdim=True)
    above = torch.where(weights > few, weights, 0.0).double().sum(-1, keepdim=True)
    whole = weights.double().sum(-1, keepdim=True)
    assert (kept >= share * whole * (1 - 1e-6)).all()
    assert (above < share * whole * (1 + 1e-6)).all()


def test_min_p_is_a_part_of_the_largest() -> None:
    assert MinP(column(0.2, kind=torch.float)).smallest(WEIGHTS).item() == pytest.approx(0.2)


@pytest.mark.parametrize("count", [1, 2, 50, 999, 1000])
def test_the_largest_come_in_falling_order(count: int) -> None:
    generator = torch.Generator().manual_seed(count)
    weights = torch.randint(0, 300, (5, 1000), generator=generator).float()
    expected = weights.sort(-1, descending=True).values[:, :count]
    assert torch.equal(largest(weights, count), expected)


def test_filters_work_on_what_those_before_have_left() -> None:
    """Of six tokens min-p leaves four; 0.9 of the rest are three, of everything four."""
    logits = torch.tensor([1.0, 0.3, 0.25, 0.2, 0.15, 0.1]).log().expand(4096, 6)
    keys, positions = torch.full((4096,), key_of(1)), torch.arange(4096)
    ones = torch.ones(4096, 1)
    floor, share = MinP(ones * 0.18), TopP(ones.double() * 0.88)
    for filters, left in [
        ((), {0, 1, 2, 3, 4, 5}),
        ((floor,), {0, 1, 2, 3}),
        ((share,), {0, 1, 2, 3, 4}),
        ((floor, share), {0, 1, 2}),
    ]:
        group = RandomDraw(slice(0, 4096), keys, ones, filters)
        assert set(group.choose(logits, positions)[0].tolist()) == left


# -- numbers at the edge ----------------------------------------------------


@pytest.mark.parametrize("temperature", [1e-5, 0.01, 2.0])
def test_no_temperature_is_too_small(temperature: float) -> None:
    logits = torch.full((100, 128), -torch.inf)
    logits[:, 70], logits[:, 71] = 3.0, 2.0
    keys, positions = torch.full((100,), key_of(1)), torch.arange(100)
    group = RandomDraw(slice(0, 100), keys, torch.full((100, 1), temperature), ())
    assert set(group.choose(logits, positions)[0].tolist()) == (
        {70} if temperature < 1 else {70, 71}
    )


def test_cells_divide_any_vocabulary() -> None:
    for vocab in (1, 2, 63, 64, 96, 50257, 151936):
        cells = by_cells(torch.zeros(1, vocab))
        assert cells.shape[1] * cells.shape[2] == vocab
    assert by_cells(torch.zeros(1, 151936)).shape[2] == 64


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_bits_are_the_same_on_another_device() -> None:
    keys = torch.tensor([key_of(seed) for seed in range(1000)])
    positions = torch.arange(1000) * 31
    words = random_words(keys.cuda(), positions.cuda())
    assert torch.equal(words.cpu(), random_words(keys, positions))
    weights = torch.rand(1000, 640, generator=torch.Generator().manual_seed(1))
    assert torch.equal(draw(weights.cuda(), words).cpu(), draw(weights, words.cpu()))
