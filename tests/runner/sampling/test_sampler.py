"""The sampler against a slow reference, row by row, and against itself in other batches."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from paceline.core.errors import StepError
from paceline.core.request import Request
from paceline.core.sampling import GREEDY, Sampling
from paceline.runner.sampling.sampler import Sampled, Sampler, score, seed_of
from paceline.runner.sampling.token_choice import HALF, key_of, random_words, shifted

CPU = torch.device("cpu")
LONGEST = 256


@dataclass(frozen=True)
class Ask:
    """One sequence as the tests think of it."""

    sampling: Sampling = GREEDY
    prompt: tuple[int, ...] = (1, 2, 3)
    outputs: tuple[int, ...] = ()
    seed: int | None = 5
    min_tokens: int = 0
    eos: tuple[int, ...] = ()
    stops: tuple[int, ...] = ()
    id: str = "a"

    @property
    def position(self) -> int:
        return len(self.prompt) + len(self.outputs)

    def then(self, *tokens: int) -> "Ask":
        return replace(self, outputs=self.outputs + tokens)

    def enter(self, sampler: Sampler, slot: int) -> None:
        request = Request(
            self.id,
            self.prompt,  # type: ignore[arg-type]
            seed=self.seed,
            min_tokens=self.min_tokens,
            eos_token_ids=self.eos,
            stop_token_ids=self.stops,
            sampling=self.sampling,
        )
        tokens = np.array(self.prompt + self.outputs, np.int32)
        sampler.admit(slot, request, tokens)


def sampled(logits: Tensor, asks: Sequence[Ask]) -> Sampled:
    """A batch of its own; the logits are left as they are."""
    sampler = Sampler(logits.shape[1], LONGEST, CPU)
    for slot, ask in enumerate(asks):
        ask.enter(sampler, slot)
    positions = torch.tensor([ask.position for ask in asks], dtype=torch.long)
    return sampler.sample(logits.clone(), sampler.controls(range(len(asks))), positions)


def chosen(logits: Sequence[float], ask: Ask) -> int:
    return int(sampled(torch.tensor([logits]), [ask]).ids)


def random_logits(rows: int, vocab: int, seed: int, spread: float = 4.0) -> Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * spread


# -- the reference ----------------------------------------------------------


def edited(logits: np.ndarray, ask: Ask) -> np.ndarray:
    asked, values = ask.sampling, logits.astype(np.float32).copy()
    for token in range(len(values)):
        if asked.allowed_token_ids is not None and token not in asked.allowed_token_ids:
            values[token] = -np.inf
        if token in asked.bad_token_ids:
            values[token] = -np.inf
        if len(ask.outputs) < ask.min_tokens and token in ask.eos + ask.stops:
            values[token] = -np.inf
        values[token] += np.float32(asked.logit_bias.get(token, 0.0))
        if token in ask.prompt + ask.outputs:
            penalty = np.float32(asked.repetition_penalty)
            values[token] = (
                values[token] / penalty if values[token] > 0 else values[token] * penalty
            )
        times = ask.outputs.count(token)
        values[token] -= np.float32(asked.frequency_penalty) * np.float32(times)
        if times:
            values[token] -= np.float32(asked.presence_penalty)
    return values


def filtered(values: np.ndarray, asked: Sampling) -> np.ndarray:
    """Probabilities that are left, not yet scaled to one."""
    scaled = (values - values.max()) / np.float32(asked.temperature)
    weights = np.exp(scaled.astype(np.float64))
    weights[weights < np.float32(asked.min_p)] = 0.0
    order = np.sort(weights)[::-1]
    count = asked.top_k or len(weights)
    inside = order[:count]
    before = np.concatenate([[0.0], np.cumsum(inside)[:-1]])
    kept = inside[before < asked.top_p * inside.sum()]
    weights[weights < kept[-1]] = 0.0
    return weights


def drawn(weights: np.ndarray, ask: Ask) -> tuple[int, float]:
    """The token, and how far from another the draw was."""
    assert ask.seed is not None
    word = random_words(torch.tensor([key_of(ask.seed)]), torch.tensor([ask.position]))
    coarse, fine = int(shifted(word, 32)) / 2.0**32, int(word & HALF) / 2.0**32
    cell = int(np.gcd(len(weights), 64))
    cells = weights.reshape(-1, cell)
    bounds = np.cumsum(cells.sum(1)) / weights.sum()
    first = int(np.searchsorted(bounds, coarse, side="right"))
    inner = np.cumsum(cells[first]) / cells[first].sum()
    within = int(np.searchsorted(inner, fine, side="right"))
    margin = min(np.abs(bounds - coarse).min(), np.abs(inner - fine).min())
    return first * cell + within, float(margin)


def expected(logits: np.ndarray, ask: Ask) -> tuple[int, float]:
    values = edited(logits, ask)
    if ask.sampling.greedy:
        return int(np.argmax(values)), 1.0
    return drawn(filtered(values, ask.sampling), ask)


def random_ask(random: Random, vocab: int) -> Ask:
    def maybe(value: Any, otherwise: Any) -> Any:
        return value if random.random() < 0.4 else otherwise

    def tokens(most: int) -> tuple[int, ...]:
        return tuple(random.randrange(vocab) for _ in range(random.randint(1, most)))

    sampling = Sampling(
        temperature=random.choice([0.0, 0.3, 0.7, 1.0, 2.0]),
        top_k=maybe(random.randint(1, vocab + 3), 0),
        top_p=maybe(random.choice([0.1, 0.5, 0.9, 0.99]), 1.0),
        min_p=maybe(random.choice([0.01, 0.2, 1.0]), 0.0),
        repetition_penalty=maybe(random.choice([0.7, 1.3]), 1.0),
        presence_penalty=maybe(random.uniform(-2, 2), 0.0),
        frequency_penalty=maybe(random.uniform(-2, 2), 0.0),
        logit_bias=maybe({token: random.uniform(-9, 9) for token in tokens(4)}, {}),
        bad_token_ids=maybe(tokens(3), ()),
        logprobs=maybe(random.randint(0, 5), None),
    )
    if random.random() < 0.3:
        allowed = set(tokens(20)) - set(sampling.bad_token_ids) | {0, vocab - 1}
        stays = {"allowed_token_ids": allowed, "bad_token_ids": ()}
        sampling = replace(sampling, **stays)  # type: ignore[arg-type]
    return Ask(
        sampling=sampling,
        prompt=tokens(6),
        outputs=maybe(tokens(10), ()),
        seed=random.randrange(1000),
        min_tokens=maybe(random.randint(1, 8), 0),
        eos=maybe((random.randrange(vocab),), ()),
        stops=maybe((random.randrange(vocab),), ()),
    )


@pytest.mark.parametrize("vocab", [37, 64, 96, 320])
def test_tokens_are_those_of_the_reference(vocab: int) -> None:
    random, close = Random(vocab), 0
    for _ in range(12):
        asks = [random_ask(random, vocab) for _ in range(16)]
        logits = random_logits(16, vocab, random.randrange(1 << 30))
        found = sampled(logits, asks)
        assert not found.bad.any()
        for row, ask in enumerate(asks):
            token, margin = expected(logits[row].numpy(), ask)
            close += margin < 1e-5
            assert found.ids[row] == token or margin < 1e-5, ask
    assert close <= 2  # a draw on the line between two tokens excuses little


@settings(max_examples=60, deadline=None)
@given(
    logits=st.lists(st.integers(-3, 3), min_size=8, max_size=8),
    temperature=st.sampled_from([0.0, 0.5, 1.0]),
    top_k=st.integers(0, 9),
    top_p=st.sampled_from([0.3, 0.8, 1.0]),
    min_p=st.sampled_from([0.0, 0.1]),
    seed=st.integers(-(2**70), 2**70),
)
def test_ties_stay_or_go_together(
    logits: list[int], temperature: float, top_k: int, top_p: float, min_p: float, seed: int
) -> None:
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    ask = Ask(sampling, seed=seed)
    token, margin = expected(np.array(logits), ask)
    assert chosen([float(logit) for logit in logits], ask) == token or margin < 1e-5


# -- distributions ----------------------------------------------------------

LOGITS = [2.0, 1.0, 0.5, 0.0, -1.0, -3.0]


def frequencies(sampling: Sampling, logits: Sequence[float] = LOGITS, many: int = 20_000) -> Any:
    sampler = Sampler(len(logits), many, CPU)
    Ask(sampling).enter(sampler, 0)
    controls = sampler.controls([0] * many)
    rows = torch.tensor([logits]).repeat(many, 1)
    found = sampler.sample(rows, controls, torch.arange(many)).ids.numpy()
    return np.bincount(found, minlength=len(logits)) / many


@pytest.mark.parametrize(
    ("sampling", "left"),
    [
        (Sampling(), 6),
        (Sampling(temperature=0.5), 6),
        (Sampling(temperature=2.0), 6),
        (Sampling(temperature=20.0), 6),
        (Sampling(top_k=2), 2),
        (Sampling(top_p=0.7), 2),
        (Sampling(top_p=0.9), 4),
        (Sampling(min_p=0.2), 3),
        (Sampling(temperature=2.0, min_p=0.2), 5),
        (Sampling(temperature=2.0, top_k=4, top_p=0.9, min_p=0.3), 4),
        (Sampling(top_k=3, top_p=0.85), 2),
        (Sampling(top_k=-1, top_p=1.0, min_p=0.0), 6),
    ],
)
def test_frequencies_are_the_probabilities(sampling: Sampling, left: int) -> None:
    weights = np.exp(np.array(LOGITS) / sampling.temperature)
    weights[left:] = 0.0
    exact = weights / weights.sum()
    found = frequencies(sampling)
    assert (found[left:] == 0).all()
    noise = np.sqrt(exact * (1 - exact) / 20_000)
    assert (np.abs(found - exact) <= 5 * noise).all()


def test_min_p_comes_before_top_k_and_top_p() -> None:
    """Of five tokens min-p leaves four, of which three make up 0.88; of the five, four do."""
    logits = np.log([1.0, 0.3, 0.25, 0.2, 0.15, 0.1]).tolist()
    found = frequencies(Sampling(min_p=0.18, top_k=5, top_p=0.88), logits)
    assert (found > 0).tolist() == [True, True, True, False, False, False]
    found = frequencies(Sampling(min_p=0.18, top_p=0.88), logits)
    assert (found > 0).tolist() == [True, True, True, False, False, False]


def test_more_alternatives_than_there_are_words_are_all_of_them() -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0]])
    assert score(logits, torch.tensor([1]), 70).ids.tolist() == [[1, 2, 0]]


def test_another_seed_is_another_sample() -> None:
    logits = torch.zeros(50, 1000)
    asks = [Ask(Sampling(), seed=seed) for seed in range(50)]
    assert len(set(sampled(logits, asks).ids.tolist())) > 40


def test_a_request_without_a_seed_takes_one_from_its_id() -> None:
    logits = torch.zeros(50, 1000)
    asks = [Ask(Sampling(), seed=None, id=f"request {n}") for n in range(50)]
    first = sampled(logits, asks).ids
    assert torch.equal(first, sampled(logits, asks).ids)
    assert len(set(first.tolist())) > 40
    assert seed_of(Request("a", [1])) != seed_of(Request("b", [1]))  # type: ignore[arg-type]
    assert seed_of(Request("\ud800", [1], seed=None)) >= 0  # type: ignore[arg-type]
    assert seed_of(Request("a", [1], seed=0)) == 0  # type: ignore[arg-type]


# -- greedy, biases, lists --------------------------------------------------


def test_among_equals_the_smallest_id_wins() -> None:
    assert chosen([0.0, 2.0, 1.0, 2.0], Ask()) == 1
    for vocab in (100, 128):
        logits = torch.zeros(3, vocab)
        logits[1, 70:90] = 1.0
        assert sampled(logits, [Ask()] * 3).ids.tolist() == [0, 70, 0]


def test_a_bias_is_added() -> None:
    assert chosen([0.0, 1.0, 2.0], Ask(Sampling(temperature=0, logit_bias={0: 2.5}))) == 0
    assert chosen([0.0, 1.0, 2.0], Ask(Sampling(temperature=0, logit_bias={2: -1.5}))) == 1
    assert chosen([0.0, 1.0, 2.0], Ask(Sampling(temperature=0, logit_bias={2: -100}))) == 1


def test_tokens_may_be_forbidden_or_allowed() -> None:
    assert chosen([0.0, 1.0, 2.0], Ask(Sampling(temperature=0, bad_token_ids=[2]))) == 1
    assert chosen([0.0, 1.0, 2.0], Ask(Sampling(temperature=0, allowed_token_ids=[0]))) == 0
    only = Sampling(temperature=2.0, allowed_token_ids=[0, 2])
    assert (frequencies(only) > 0).tolist() == [True, False, True, False, False, False]


def test_ids_that_the_model_does_not_have_change_nothing() -> None:
    strange = Sampling(
        temperature=0,
        logit_bias={9: 50.0},
        bad_token_ids=[8],
        allowed_token_ids=[0, 7],
        repetition_penalty=1.5,
        logprobs=10,
    )
    ask = Ask(strange, prompt=(1, 77), outputs=(99,), min_tokens=5, eos=(40,), stops=(50,))
    found = sampled(torch.tensor([[1.0, 2.0, 3.0]]), [ask])
    assert found.ids.tolist() == [0]
    assert found.scores is not None
    assert found.scores.ids.tolist() == [[2, 1, 0]]


def test_stops_are_masked_until_enough_tokens_are_there() -> None:
    ask = Ask(min_tokens=2, eos=(2,), stops=(1,))
    logits = [0.0, 1.0, 2.0]
    assert chosen(logits, ask) == 0
    assert chosen(logits, ask.then(0)) == 0
    assert chosen(logits, ask.then(0, 0)) == 2
    assert chosen(logits, replace(ask, min_tokens=0)) == 2


# -- penalties --------------------------------------------------------------


def after(ask: Ask, logits: Sequence[float]) -> list[float]:
    """What the penalties make of the logits, read from where a bias tips the balance."""
    sampler = Sampler(len(logits), LONGEST, CPU)
    ask.enter(sampler, 0)
    controls = sampler.controls([0])
    rows = torch.tensor([logits])
    sampler.sample(rows, controls, torch.tensor([ask.position]))
    return rows[0].tolist()


def penalised(**penalties: float) -> Sampling:
    return Sampling(temperature=0, **penalties)  # type: ignore[arg-type]


def test_repetition_divides_the_liked_and_multiplies_the_disliked() -> None:
    ask = Ask(penalised(repetition_penalty=2.0), prompt=(0, 1, 1), outputs=(2, 2))
    logits = [4.0, -4.0, 1.0, 3.0, -3.0, 0.0]
    assert after(ask, logits) == [2.0, -8.0, 0.5, 3.0, -3.0, 0.0]


def test_presence_counts_a_token_of_the_output_once() -> None:
    ask = Ask(penalised(presence_penalty=0.5), prompt=(0, 1), outputs=(2, 2, 3))
    assert after(ask, [1.0] * 5) == [1.0, 1.0, 0.5, 0.5, 1.0]


def test_frequency_counts_a_token_of_the_output_each_time() -> None:
    ask = Ask(penalised(frequency_penalty=0.5), prompt=(0, 1), outputs=(2, 2, 3, 2))
    assert after(ask, [1.0] * 5) == [1.0, 1.0, -0.5, 0.5, 1.0]


def test_penalties_may_favour() -> None:
    ask = Ask(penalised(frequency_penalty=-1.0, repetition_penalty=0.5), (0,), outputs=(1, 1))
    assert after(ask, [1.0, 1.0, 1.0]) == [2.0, 4.0, 1.0]


def test_all_penalties_add_up_in_their_order() -> None:
    ask = Ask(
        penalised(repetition_penalty=2.0, presence_penalty=1.0, frequency_penalty=0.25),
        prompt=(0, 2),
        outputs=(1, 2, 2),
    )
    assert after(ask, [8.0, 8.0, 8.0, 8.0]) == [4.0, 2.75, 2.5, 8.0]


def test_a_bias_comes_before_the_penalty() -> None:
    sampling = Sampling(temperature=0, repetition_penalty=2.0, logit_bias={0: 3.0})
    assert after(Ask(sampling, prompt=(0,)), [1.0, 1.0]) == [2.0, 1.0]


def test_tokens_observed_count_like_tokens_known() -> None:
    sampling = penalised(repetition_penalty=1.5, presence_penalty=0.3, frequency_penalty=0.2)
    ask = Ask(sampling, prompt=(4, 5), outputs=(6,))
    sampler = Sampler(32, LONGEST, CPU)
    for slot, each in enumerate([ask, Ask(), ask]):
        each.enter(sampler, slot)
    controls = sampler.controls([2, 1, 0])
    later = ask
    random = Random(3)
    for step in range(150):  # past the columns that are looked at to begin with
        new = random.randrange(32)
        positions = torch.full((3,), ask.position + step)
        if step % 3:
            controls.observe(torch.tensor([new, 1, new]), positions)
            later = later.then(new)
        else:  # two at once, and none for the last row
            ids = torch.tensor([[new, 7], [1, 1], [-1, -1]])
            controls.observe(ids, positions)
    rows = random_logits(3, 32, 1)
    before = rows.clone()
    sampler.sample(rows, controls, torch.full((3,), 150))
    assert torch.equal(rows[1], before[1])
    assert rows[2].tolist() == pytest.approx(after(later, before[2].tolist()), abs=1e-5)
    assert not torch.equal(rows[0] - before[0], rows[2] - before[2])


def test_no_token_takes_no_place() -> None:
    sampler = Sampler(8, LONGEST, CPU)
    Ask(penalised(frequency_penalty=1.0), prompt=(1,), outputs=(5,)).enter(sampler, 0)
    controls = sampler.controls([0])
    controls.observe(torch.tensor([-1]), torch.tensor([1]))
    rows = torch.zeros(1, 8)
    sampler.sample(rows, controls, torch.tensor([2]))
    assert rows[0].nonzero().tolist() == [[5]]


def test_a_line_starts_afresh_for_its_next_holder() -> None:
    sampler = Sampler(8, LONGEST, CPU)
    for turn in range(40):
        ask = Ask(penalised(frequency_penalty=1.0), outputs=(turn % 8, turn % 8))
        ask.enter(sampler, turn % 3)
        rows = torch.zeros(1, 8)
        sampler.sample(rows, sampler.controls([turn % 3]), torch.tensor([5]))
        assert rows[0].nonzero().tolist() == [[turn % 8]]
        sampler.release(turn % 3)
    assert len(sampler._tally.uses) <= 4


def test_a_full_sequence_still_finds_its_tokens() -> None:
    sampler = Sampler(16, 8, CPU)
    ask = Ask(penalised(frequency_penalty=1.0), prompt=(1, 2), outputs=(3, 4, 5))
    ask.enter(sampler, 0)
    controls = sampler.controls([0])
    controls.observe(torch.tensor([[6, 7, 8, -1, -1]]), torch.tensor([5]))
    rows = torch.zeros(1, 16)
    sampler.sample(rows, controls, torch.tensor([7]))
    assert rows[0].nonzero().flatten().tolist() == [3, 4, 5, 6, 7, 8]


# -- log-probabilities ------------------------------------------------------


def test_scores_are_those_of_the_model_before_any_setting() -> None:
    logits = random_logits(6, 1000, 2)
    exact = logits.double().log_softmax(-1)
    changed = Sampling(temperature=0.5, top_k=3, logit_bias={7: 50}, logprobs=5)
    asks = [Ask(), Ask(changed), Ask(), Ask(replace(GREEDY, logprobs=0)), Ask(changed), Ask()]
    found = sampled(logits, asks)
    assert found.ids[1] == found.ids[4] == 7
    assert found.scores is not None
    for line, row in enumerate([1, 3, 4]):
        token = found.ids[row]
        assert found.scores.given[line] == pytest.approx(float(exact[row, token]), abs=1e-5)
        assert found.scores.rank[line] == int((logits[row] > logits[row, token]).sum()) + 1
        best = exact[row].topk(5)
        assert found.scores.ids[line].tolist() == best.indices.tolist()
        assert torch.allclose(found.scores.values[line].double(), best.values, atol=1e-5)
    assert found.scores.rank[1] == 1


def test_nobody_is_scored_who_does_not_ask() -> None:
    assert sampled(torch.zeros(2, 10), [Ask(), Ask(Sampling())]).scores is None


@pytest.mark.parametrize("vocab", [5, 100, 1001, 4096])
def test_equal_alternatives_come_by_id_however_many(vocab: int) -> None:
    generator = torch.Generator().manual_seed(vocab)
    logits = torch.randint(-2, 3, (20, vocab), generator=generator).float()
    logits[:, 0] = -0.0
    order = [
        sorted(range(vocab), key=lambda token, row=row: (-row[token], token))
        for row in logits.tolist()
    ]
    ids = torch.zeros(20, dtype=torch.long)
    for count in (0, 1, 3, min(20, vocab), min(200, vocab)):
        found = score(logits, ids, count)
        assert found.ids.tolist() == [each[:count] for each in order]
        assert found.values.shape == (20, count)


def test_any_token_can_be_scored() -> None:
    """As the tokens of a prompt are."""
    logits = random_logits(300, 500, 4, spread=10.0)
    ids = torch.randint(0, 500, (300,), generator=torch.Generator().manual_seed(2))
    found = score(logits, ids, 2)
    exact = logits.double().log_softmax(-1).gather(1, ids[:, None])[:, 0]
    assert torch.allclose(found.given.double(), exact, atol=1e-5)
    assert found.rank.min() >= 1
    assert found.rank.max() <= 500


def test_named_tokens_are_scored_instead_of_the_likeliest() -> None:
    sampler = Sampler(8, 64, torch.device("cpu"))
    asked = (
        Sampling(temperature=0, logprob_token_ids=[6, 1, 6]),
        Sampling(temperature=0, logprobs=3),
        Sampling(temperature=0, logprob_token_ids=[2]),
    )
    for slot, sampling in enumerate(asked):
        request = Request(id=str(slot), prompt=[1], max_tokens=2, sampling=sampling)
        sampler.admit(slot, request, request.prompt)
    logits = torch.arange(24, dtype=torch.float).view(3, 8) / 7
    controls = sampler.controls(range(3))
    found = sampler.sample(logits.clone(), controls, torch.ones(3, dtype=torch.long)).scores
    assert found is not None
    assert found.ids[0, :2].tolist() == [1, 6]
    assert found.ids[1].tolist() == [7, 6, 5]
    assert found.ids[2, 0] == 2
    expected = logits.log_softmax(-1).gather(-1, found.ids)
    torch.testing.assert_close(found.values, expected)


def test_scores_bear_masked_logits() -> None:
    logits = torch.full((1, 64), -torch.inf)
    logits[0, 3] = 5.0
    found = score(logits, torch.tensor([3]), 2)
    assert found.given.tolist() == [0.0]
    assert found.ids.tolist() == [[3, 0]]
    assert found.values.tolist() == [[0.0, -torch.inf]]


# -- batches ----------------------------------------------------------------


@pytest.mark.parametrize("vocab", [128, 1001, 5000])
def test_a_row_does_not_depend_on_its_neighbours(vocab: int) -> None:
    random = Random(vocab)
    asks = [random_ask(random, vocab) for _ in range(24)]
    logits = random_logits(24, vocab, vocab)
    together = sampled(logits, asks)
    scored = [row for row, ask in enumerate(asks) if ask.sampling.logprobs is not None]
    assert together.scores is not None
    for row, ask in enumerate(asks):
        alone = sampled(logits[row, None], [ask])
        assert alone.ids[0] == together.ids[row]
        if alone.scores is not None:
            line, count = scored.index(row), ask.sampling.logprobs
            assert torch.equal(alone.scores.given[0], together.scores.given[line])
            assert torch.equal(alone.scores.rank[0], together.scores.rank[line])
            assert torch.equal(alone.scores.ids[0], together.scores.ids[line, :count])
            assert torch.equal(alone.scores.values[0], together.scores.values[line, :count])
    for _ in range(8):
        rows = random.sample(range(24), random.randint(2, 24))
        some = sampled(logits[rows], [asks[row] for row in rows])
        assert torch.equal(some.ids, together.ids[rows])


def test_logits_are_edited_the_same_in_every_batch() -> None:
    random = Random(8)
    asks = [random_ask(random, 200) for _ in range(16)]
    sampler = Sampler(200, LONGEST, CPU)
    for slot, ask in enumerate(asks):
        ask.enter(sampler, slot)
    positions = torch.tensor([ask.position for ask in asks])
    logits = random_logits(16, 200, 1)
    together = logits.clone()
    sampler.sample(together, sampler.controls(range(16)), positions)
    for row in range(16):
        alone = logits[row, None].clone()
        sampler.sample(alone, sampler.controls([row]), positions[row, None])
        assert torch.equal(alone[0], together[row])


def test_an_empty_batch_samples_nothing() -> None:
    sampler = Sampler(10, LONGEST, CPU)
    found = sampler.sample(torch.zeros(0, 10), sampler.controls([]), torch.zeros(0).long())
    assert len(found.ids) == len(found.bad) == 0
    assert found.scores is None


def test_a_batch_pays_only_for_what_it_asks() -> None:
    sampler = Sampler(100, LONGEST, CPU)
    kinds = [Ask(), Ask(Sampling()), Ask(Sampling(top_p=0.5)), Ask(Sampling(top_k=5, min_p=0.1))]
    for slot, ask in enumerate(kinds):
        ask.enter(sampler, slot)
    plain = sampler.controls([0, 0])
    assert plain.edits == ()
    assert plain.scored is plain.penalties is None
    assert [type(group).__name__ for group in plain.groups] == ["Greedy"]
    mixed = sampler.controls([1, 0, 2, 1, 3, 2])
    assert len(mixed.groups) == 4
    free = sampler.controls([1, 1])
    assert [group.filters for group in free.groups] == [()]  # type: ignore[attr-defined]


# -- broken rows ------------------------------------------------------------


@pytest.mark.parametrize(
    "sampling",
    [
        GREEDY,
        Sampling(),
        Sampling(top_k=3),
        Sampling(top_p=0.9),
        Sampling(min_p=0.1),
        Sampling(repetition_penalty=1.2, logprobs=3),
        Sampling(temperature=0, allowed_token_ids=[1, 2]),
    ],
    ids=["greedy", "free", "top_k", "top_p", "min_p", "penalised", "allowed"],
)
@pytest.mark.parametrize("vocab", [100, 2048])
def test_a_broken_row_is_reported_and_alone(sampling: Sampling, vocab: int) -> None:
    logits = random_logits(5, vocab, 3)
    asks = [Ask(sampling, seed=seed) for seed in range(5)]
    sound = sampled(logits, asks)
    broken = logits.clone()
    broken[0, 5] = float("nan")
    broken[2] = -torch.inf
    broken[4, 1] = torch.inf
    found = sampled(broken, asks)
    assert found.bad.tolist() == [True, False, True, False, True]
    assert found.ids[[0, 2, 4]].tolist() == [0, 0, 0]
    assert torch.equal(found.ids[[1, 3]], sound.ids[[1, 3]])
    assert not sound.bad.any()


def test_a_row_that_may_choose_nothing_is_bad() -> None:
    ask = Ask(min_tokens=3, eos=(0,), stops=(1,))
    assert sampled(torch.zeros(1, 2), [ask]).bad.tolist() == [True]


@pytest.mark.parametrize(
    "logits",
    [torch.zeros(3, 10), torch.zeros(2, 11), torch.zeros(2, 10).double(), torch.zeros(20)],
    ids=["rows", "vocab", "kind", "shape"],
)
def test_logits_that_do_not_fit_the_batch_are_an_error(logits: Tensor) -> None:
    sampler = Sampler(10, LONGEST, CPU)
    Ask().enter(sampler, 0)
    controls = sampler.controls([0, 0])
    with pytest.raises(
        StepError, match=r"^logits are .*; they must be \[2, 10\] of torch.float32$"
    ):
        sampler.sample(logits, controls, torch.zeros(2).long())


# -- drafts -----------------------------------------------------------------

Model = Callable[[Sequence[int]], Tensor]


def model(vocab: int, seed: int) -> Model:
    """Logits that depend on all tokens before."""

    def logits(tokens: Sequence[int]) -> Tensor:
        return random_logits(1, vocab, hash((seed, *tokens)) % (1 << 60), spread=2.0)[0]

    return logits


def one_by_one(asks: Sequence[Ask], models: Sequence[Model], steps: int) -> list[list[int]]:
    vocab = len(models[0]([]))
    sampler = Sampler(vocab, LONGEST, CPU)
    for slot, ask in enumerate(asks):
        ask.enter(sampler, slot)
    controls = sampler.controls(range(len(asks)))
    tokens = [[*ask.prompt, *ask.outputs] for ask in asks]
    for _ in range(steps):
        rows = torch.stack([each(known) for each, known in zip(models, tokens, strict=True)])
        positions = torch.tensor([len(known) for known in tokens])
        ids = sampler.sample(rows, controls, positions).ids
        controls.observe(ids, positions)
        for known, token in zip(tokens, ids.tolist(), strict=True):
            known.append(token)
    return tokens


def guessed(right: Sequence[int], vocab: int, random: Random) -> list[int]:
    """Drafts for tokens to come, some wrong, some missing at the end."""
    drafts = [token if random.random() < 0.8 else random.randrange(vocab) for token in right]
    count = random.randint(0, len(drafts))
    return drafts[:count] + [-1] * (len(drafts) - count)


def test_speculation_changes_no_token() -> None:
    random, vocab, accepted = Random(5), 24, 0
    asks = [random_ask(random, vocab) for _ in range(12)]
    asks = [replace(ask, outputs=ask.outputs[:4], seed=row) for row, ask in enumerate(asks)]
    models = [model(vocab, row) for row in range(12)]
    truth = one_by_one(asks, models, steps=50)
    sampler = Sampler(vocab, LONGEST, CPU)
    for slot, ask in enumerate(asks):
        ask.enter(sampler, slot)
    controls = sampler.controls(range(12))
    lengths = [ask.position for ask in asks]
    for _ in range(12):  # of at most four tokens
        width = random.randint(0, 3)
        known = [whole[:length] for whole, length in zip(truth, lengths, strict=True)]
        drafts = [
            guessed(whole[length : length + width], vocab, random)
            for whole, length in zip(truth, lengths, strict=True)
        ]
        logits = [
            torch.stack([each(before + draft[:place]) for place in range(width + 1)])
            for each, before, draft in zip(models, known, drafts, strict=True)
        ]
        positions = torch.tensor(lengths)
        proposed = torch.tensor(drafts, dtype=torch.long).reshape(12, width)
        found = sampler.verify(torch.stack(logits), proposed, controls, positions)
        controls.observe(found.ids, positions)
        assert not found.bad.any()
        for row, (new, count) in enumerate(
            zip(found.ids.tolist(), found.count.tolist(), strict=True)
        ):
            start = lengths[row]
            assert new[:count] == truth[row][start : start + count]
            assert new[count:] == [-1] * (width + 1 - count)
            lengths[row] += count
            accepted += count - 1
    assert accepted > 50


def test_a_draft_is_taken_as_far_as_it_is_right() -> None:
    sampler = Sampler(4, LONGEST, CPU)
    Ask().enter(sampler, 0)
    controls = sampler.controls([0] * 5)
    best = torch.nn.functional.one_hot(torch.tensor([1, 2, 3]), 4).float()  # 1, then 2, then 3
    drafts = torch.tensor([[1, 2], [1, 0], [0, 2], [1, -1], [-1, -1]])
    found = sampler.verify(best.repeat(5, 1, 1), drafts, controls, torch.full((5,), 3))
    assert found.count.tolist() == [3, 2, 1, 2, 1]
    assert found.ids.tolist() == [[1, 2, 3], [1, 2, -1], [1, -1, -1], [1, 2, -1], [1, -1, -1]]
    assert found.scores == (None, None, None)


def test_a_broken_place_ends_the_row_there() -> None:
    sampler = Sampler(4, LONGEST, CPU)
    Ask().enter(sampler, 0)
    controls = sampler.controls([0] * 3)
    best = torch.nn.functional.one_hot(torch.tensor([0, 0, 0]), 4).float().repeat(3, 1, 1)
    best[0, 1] = float("nan")
    best[1, 2] = float("nan")
    drafts = torch.tensor([[0, 0], [1, 0], [0, 0]])
    found = sampler.verify(best, drafts, controls, torch.full((3,), 3))
    assert found.count.tolist() == [2, 1, 3]  # the second row ends before its broken place
    assert found.bad.tolist() == [True, False, False]


def test_drafts_are_scored_place_by_place() -> None:
    sampler = Sampler(50, LONGEST, CPU)
    Ask(Sampling(logprobs=2)).enter(sampler, 0)
    Ask().enter(sampler, 1)
    logits = random_logits(6, 50, 1).reshape(2, 3, 50)
    exact = logits.log_softmax(-1)
    positions, drafts = torch.tensor([3, 3]), torch.zeros(2, 2).long()
    found = sampler.verify(logits.clone(), drafts, sampler.controls([1, 0]), positions)
    assert len(found.scores) == 3
    first = found.scores[0]
    assert first is not None
    assert first.given.tolist() == pytest.approx([float(exact[1, 0, found.ids[1, 0]])], abs=1e-5)


# -- residence --------------------------------------------------------------


def test_a_preempted_sequence_goes_on_as_if_nothing_had_been() -> None:
    random = Random(9)
    asks = [replace(random_ask(random, 24), outputs=(), seed=row) for row in range(8)]
    models = [model(24, 100 + row) for row in range(8)]
    truth = one_by_one(asks, models, steps=12)
    for row, ask in enumerate(asks):
        known = truth[row][: len(ask.prompt) + 5]
        resumed = replace(ask, outputs=tuple(known[len(ask.prompt) :]))
        assert one_by_one([resumed], [models[row]], steps=7)[0] == truth[row]


def test_slots_are_taken_and_given_back() -> None:
    sampler = Sampler(10, LONGEST, CPU)
    Ask().enter(sampler, 3)
    with pytest.raises(AssertionError, match="slot 3 is taken"):
        Ask().enter(sampler, 3)
    sampler.release(3)
    Ask().enter(sampler, 3)
    with pytest.raises(KeyError):
        sampler.controls([2])


def test_samples_differ_along_a_sequence() -> None:
    sampler = Sampler(1000, LONGEST, CPU)
    Ask(Sampling()).enter(sampler, 0)
    found = sampler.sample(torch.zeros(40, 1000), sampler.controls([0] * 40), torch.arange(40))
    assert Counter(found.ids.tolist()).most_common(1)[0][1] < 4


# -- another device ---------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_graph_replays_what_was_sampled() -> None:
    random, cuda = Random(4), torch.device("cuda")
    asks = [random_ask(random, 3200) for _ in range(16)]
    logits = random_logits(16, 3200, 1)
    sampler = Sampler(3200, LONGEST, cuda)
    for slot, ask in enumerate(asks):
        ask.enter(sampler, slot)
    controls = sampler.controls(range(16))
    positions = torch.tensor([ask.position for ask in asks]).to(cuda)
    space = logits.to(cuda)
    sampler.sample(space, controls, positions)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = sampler.sample(space, controls, positions)
    for seed in range(3):
        logits = random_logits(16, 3200, seed)
        space.copy_(logits)
        graph.replay()
        assert torch.equal(found.ids.cpu(), sampled(logits, asks).ids)
