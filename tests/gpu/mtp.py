"""MTP heads by the kernels for GPUs, compared with those of a CPU over whole sequences."""

from typing import Any

import torch
from torch import Tensor

from paceline import Request, Scheduler
from paceline.runner.attention_backend import load
from paceline.runner.cuda.drafting.mtp import CudaMtp
from paceline.runner.draft_heads.mtp import MTPHead, MTPWeights
from paceline.runner.kv_store import KVStore
from paceline.runner.layers.norm import LayerInputs
from paceline.runner.models.model import Model
from paceline.runner.weights.dummy import Dummy
from tests.gpu.eagle3 import NotedDrafts, driven
from tests.runner.driving import SETTINGS, drive, for_states
from tests.runner.support import Piece, batch_of, with_states
from tests.runner.test_runner import runner_for

PAGED = load("paged")


class NotedMtp(NotedDrafts, CudaMtp): ...


def plain_drafts(model: Model, head: MTPHead, tokens: Tensor, most: int) -> list[int]:
    """The likeliest tokens behind all of these, of which the model computed all but one."""
    kept = LayerInputs((model.config.layers,), torch.empty(len(tokens) - 1, model.config.width))
    batch = with_states(whole(tokens[:-1]), model.config)
    model.forward(batch, KVStore(model.config, 16, 4), PAGED, None, kept)
    states, found = model.normed(kept.rows), list[int]()
    for _ in range(most):
        embedded, store = model.plain_embedding()[tokens[1:]], KVStore(head.decoder, 16, 4)
        results = head.forward(embedded, states, whole(tokens[1:]), store, PAGED)
        found.append(int(head.logits(results[-1:])[0].argmax()))
        tokens = torch.cat((tokens, torch.tensor(found[-1:])))
        states = torch.cat((states, results[-1:]))
    return found


def whole(tokens: Tensor) -> Any:
    """The batch of a sequence from its beginning."""
    return batch_of([Piece(tokens.tolist(), 0, range(-(-len(tokens) // 4)))], 4)


def drafter_on(
    device: str, kind: type[CudaMtp], scheduler: Scheduler, weights: MTPWeights
) -> CudaMtp:
    head = kind.load_head(weights, 64, torch.float32, device)
    return kind(scheduler.config.speculation, head, weights.target_ids(), None, torch.float32)


def compare_drafts(device: str, source: Dummy, asked: list[Request], **how: Any) -> None:
    """All drafts under a scheduler are those of a head on a CPU, and all tokens those of the model
    alone."""
    weights, depth = MTPWeights(source), how.pop("depth", 2)
    drafting = {"num_speculative_tokens": 2, "speculation": "fixed", **how}
    model, head = Model.load(source), MTPHead.load(weights)
    plain = Scheduler.create(**for_states({**SETTINGS, "num_blocks": 64}, source.config))
    due = drive(plain, runner_for(model, plain), asked)
    scheduler = Scheduler.create(**for_states({**SETTINGS, **drafting}, source.config))
    drafter: Any = drafter_on(device, NotedMtp, scheduler, weights)
    drafter.noted = []
    assert driven(source, scheduler, drafter, asked, depth) == due
    assert drafter.noted
    for tokens, drafts in drafter.noted:
        assert drafts == plain_drafts(model, head, tokens, len(drafts))
