"""Drafts keep the distribution of what is sampled: frequencies of many samples with fixed seeds
against probabilities that a slow reference computes."""

from collections import Counter
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor

from paceline.core.sampling import GREEDY, Sampling
from paceline.runner.sampling.rejection import DrawnDrafts, draw_drafts
from paceline.runner.sampling.sampler import Sampler
from paceline.runner.sampling.token_choice import RandomDraw, mix
from tests.runner.sampling.test_sampler import CPU, LONGEST, Ask, edited, filtered, random_logits

VOCAB, TOKENS, DRAFTS, ROWS = 5, 3, 2, 3000
PROMPT = (1, 2, 3)
MODEL = random_logits(VOCAB, VOCAB, seed=1, spread=1.2)  # by the token before

KINDS = {
    "at a temperature": Sampling(temperature=0.8),
    "of the likeliest": Sampling(temperature=1.3, top_k=3),
    "of the likeliest by mass": Sampling(temperature=1.0, top_p=0.7),
    "with penalties": Sampling(
        temperature=1.0, repetition_penalty=1.4, frequency_penalty=0.7, presence_penalty=0.4
    ),
}
# Logits of drafts, by the token before. The last ones draft only what the model likes least.
PROPOSERS = {
    "right": MODEL,
    "wrong": random_logits(VOCAB, VOCAB, seed=2, spread=1.5),
    "always wrong": torch.nn.functional.one_hot(MODEL.argmin(-1), VOCAB) * 50.0,
}


def sampled(
    sampling: Sampling, table: Tensor | None, is_drawn: bool = True
) -> tuple[Counter[tuple[int, ...]], float]:
    """How often each sequence of tokens was sampled, and the share of drafts that were accepted.
    Drafts are drawn by the logits of a table, or are its likeliest tokens."""
    sampler, keys = Sampler(VOCAB, LONGEST, CPU), mix(torch.arange(ROWS))
    rows = list(range(ROWS)) if sampling.penalised else [0] * ROWS  # who counts its own tokens
    for row in set(rows):
        Ask(sampling, PROMPT).enter(sampler, row)
    controls = sampler.controls(rows)
    (group,) = controls.groups
    if isinstance(group, RandomDraw):
        controls = replace(controls, groups=(replace(group, keys=keys),))
    heat = torch.full((ROWS,), 0.0 if sampling.greedy else sampling.temperature)
    known = torch.full((ROWS,), len(PROMPT))
    tokens = torch.zeros(ROWS, LONGEST, dtype=torch.long)
    tokens[:, : len(PROMPT)] = torch.tensor(PROMPT)
    tried = accepted = 0
    while int(known.min()) < len(PROMPT) + TOKENS:
        drafts = torch.full((ROWS, DRAFTS), -1)
        likely = torch.zeros(ROWS, DRAFTS, VOCAB)
        last = tokens.gather(1, known[:, None] - 1)[:, 0]
        for place in range(DRAFTS if table is not None else 0):
            assert table is not None
            logits = table[last]
            drafts[:, place], likely[:, place] = draw_drafts(logits, heat, keys, known + place)
            if not is_drawn:
                drafts[:, place] = logits.argmax(-1)
            last = drafts[:, place]
        drafts[::5, 1] = -1  # some rows have fewer
        before = torch.cat([tokens.gather(1, known[:, None] - 1), drafts.clamp(min=0)], 1)
        given = likely if is_drawn else None
        found = sampler.verify(MODEL[before], drafts, controls, known, probabilities=given)
        controls.observe(found.ids, known)
        for place in range(DRAFTS + 1):
            real = found.ids[:, place] >= 0
            tokens[real, known[real] + place] = found.ids[real, place]
        known += found.count
        tried += ROWS
        accepted += int((found.count > 1).sum())
    outputs = tokens[:, len(PROMPT) : len(PROMPT) + TOKENS].tolist()
    return Counter(map(tuple, outputs)), accepted / tried


def expected(sampling: Sampling) -> dict[tuple[int, ...], float]:
    """The probability of each sequence of tokens."""
    found: dict[tuple[int, ...], float] = {}
    for tokens in product(range(VOCAB), repeat=TOKENS):
        chance, ask = 1.0, Ask(sampling, PROMPT)
        for token in tokens:
            logits = MODEL[(PROMPT + ask.outputs)[-1]].numpy()
            weights = filtered(edited(logits, ask), sampling)
            chance *= float(weights[token] / weights.sum())
            ask = ask.then(token)
        found[tokens] = chance
    return found


def surprise(counts: Counter[tuple[int, ...]], chances: dict[tuple[int, ...], float]) -> float:
    """Chi-square, in standard deviations above what chance gives. Rare sequences are one kind."""
    assert all(chances[tokens] > 0.0 for tokens in counts), "an impossible sequence was sampled"
    due = np.array([chance * ROWS for chance in chances.values()])
    got = np.array([counts[tokens] for tokens in chances])
    is_rare = due < 5.0
    due = np.append(due[~is_rare], max(due[is_rare].sum(), 1e-9))
    got = np.append(got[~is_rare], got[is_rare].sum())
    kinds = max(int((due > 1e-6).sum()) - 1, 1)
    return float((((got - due) ** 2 / due).sum() - kinds) / np.sqrt(2 * kinds))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("proposer", PROPOSERS)
def test_drawn_drafts_keep_the_distribution(kind: str, proposer: str) -> None:
    counts, _ = sampled(KINDS[kind], PROPOSERS[proposer])
    assert surprise(counts, expected(KINDS[kind])) < 4.0


@pytest.mark.parametrize("kind", KINDS)
def test_drafts_that_follow_from_the_tokens_keep_it_without_probabilities(kind: str) -> None:
    """They change no token: each is drawn as it would be without drafts."""
    counts, share = sampled(KINDS[kind], MODEL, is_drawn=False)
    assert share > 0.2
    assert counts == sampled(KINDS[kind], None)[0]
    assert surprise(counts, expected(KINDS[kind])) < 4.0


def test_the_test_notices_drafts_whose_probabilities_are_not_those_they_were_drawn_by() -> None:
    kind = KINDS["at a temperature"]
    counts, _ = sampled(replace(kind, temperature=1.0), PROPOSERS["wrong"])
    assert surprise(counts, expected(kind)) > 10.0


def test_right_drafts_are_accepted_and_impossible_ones_are_not() -> None:
    assert sampled(KINDS["at a temperature"], MODEL)[1] > 0.999
    assert sampled(KINDS["of the likeliest"], PROPOSERS["always wrong"])[1] == 0.0


@pytest.mark.parametrize("proposer", PROPOSERS)
def test_greedy_output_is_unchanged(proposer: str) -> None:
    alone, _ = sampled(GREEDY, None)
    assert len(alone) == 1
    assert sampled(GREEDY, PROPOSERS[proposer])[0] == alone


def test_a_row_without_a_draft_or_with_the_same_probabilities_draws_by_itself() -> None:
    weights, keys = torch.tensor([[0.2, 1.0]]).repeat(64, 1), torch.arange(64)
    positions = torch.zeros(64, dtype=torch.long)
    same = weights / weights.sum(-1, keepdim=True)
    missing = DrawnDrafts(torch.full((64,), -1), same).draw(weights, keys, positions)
    found = DrawnDrafts(torch.ones(64, dtype=torch.long), same).draw(weights, keys, positions)
    assert sorted(set(missing.tolist())) == [0, 1]
    assert found.tolist() == [1] * 64
