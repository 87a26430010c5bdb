"""Controls of rows, and packed masks on logits."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from paceline import Request, Scheduler
from paceline.core.masks import MaskRows
from paceline.runner import step_tokens
from paceline.runner.sampling.sampler import Sampler
from paceline.runner.step_tokens import RowControls, apply_masks, without_forbidden


def test_controls_are_made_anew_only_for_other_slots() -> None:
    scheduler = Scheduler.create(max_num_seqs=4, max_model_len=32, num_blocks=32, block_size=4)
    for name in "ab":
        scheduler.submit(Request(id=name, prompt=[1, 2], max_tokens=9), now=0.0)  # pyright: ignore[reportArgumentType]
    plan = scheduler.plan(now=0.0)
    sampler = Sampler(16, 32, torch.device("cpu"))
    for new in plan.admitted:
        sampler.admit(new.slot, new.request, new.tokens)
    controls, everyone = RowControls(sampler), np.array([0, 1])
    first = controls.of(plan.rows, everyone)
    assert controls.of(plan.rows, everyone) is first
    assert controls.of(replace(plan.rows), everyone) is first
    assert controls.of(replace(plan.rows), np.array([1])) is not first
    controls.forget()
    assert controls.of(plan.rows, everyone) is not first


MIXED, ALL, NONE = 0.5, 1.0, 0.0


@pytest.fixture(params=[True, False], ids=["kernels", "no kernels"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if not request.param:
        monkeypatch.setattr(step_tokens, "has_kernels", lambda: False)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("share", [MIXED, ALL, NONE])
def test_only_allowed_tokens_keep_their_logits(share: float) -> None:
    vocab = 77
    allowed = np.random.default_rng(0).random((2, vocab)) < share
    padded = np.zeros((2, 96), np.bool_)
    padded[:, :vocab] = allowed
    bits = np.packbits(padded, axis=1, bitorder="little").view(np.int32)
    masks = MaskRows(np.array([2, 0]), np.arange(2), bits)
    assert (masks.allowed(vocab) == allowed).all()
    logits = torch.randn(3, vocab)
    before = logits.clone()
    apply_masks(logits, masks, torch.tensor([2, 0]))
    kept = torch.from_numpy(allowed)
    for line, own in ((2, kept[0]), (0, kept[1])):
        assert torch.equal(logits[line][own], before[line][own])
        assert (logits[line][~own] == -torch.inf).all()
    assert torch.equal(logits[1], before[1])


@pytest.mark.usefixtures("kernels")
def test_an_allowed_logit_that_is_no_number_stays_one() -> None:
    logits = torch.full((1, 32), torch.nan)
    apply_masks(
        logits, MaskRows(np.array([0]), np.array([0]), np.array([[5]], np.int32)), torch.tensor([0])
    )
    assert logits.isnan().nonzero().tolist() == [[0, 0], [0, 2]]


@pytest.mark.usefixtures("kernels")
def test_drafts_end_before_the_first_that_is_not_allowed() -> None:
    drafts = torch.tensor([[5, 6, 7], [8, 9, -1], [1, 2, 3], [4, 5, 6]])
    lines = np.array([0, 1, 4, 5, 6, 8])  # of four places each: two, three, one, and no masks
    masks = MaskRows(lines, np.arange(6), np.zeros((6, 1), np.int32))
    assert without_forbidden(drafts, masks).tolist() == [
        [5, -1, -1],
        [8, 9, -1],
        [-1, -1, -1],
        [4, 5, 6],
    ]
