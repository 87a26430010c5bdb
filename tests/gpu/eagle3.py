"""EAGLE-3 heads by the kernels for GPUs, compared with a plain head over whole sequences."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paceline import Request, Scheduler
from paceline.runner.attention_backend import load
from paceline.runner.cuda.drafting.eagle3 import CudaEagle3, CudaEagle3Head
from paceline.runner.cuda.drafting.head_drafter import CudaHeadDrafter
from paceline.runner.cuda.model import CudaModel
from paceline.runner.cuda.runner import CudaRunner, RunnerSizes
from paceline.runner.draft_heads.eagle3_folder import Eagle3Folder
from paceline.runner.kv_store import KVStore
from paceline.runner.layers.norm import LayerInputs
from paceline.runner.models.model import Model
from paceline.runner.proposer import DraftInput, Drafts
from paceline.runner.weights.dummy import Dummy
from tests.runner.driving import SETTINGS, drive
from tests.runner.eagle3 import PlainHead, head_config, head_folder, head_tensors
from tests.runner.support import Piece, batch_of

LAYERS = (0, 1, 1)
CHANGES: dict[str, Any] = {"eagle_aux_hidden_state_layer_ids": LAYERS, "norm_before_residual": True}


class NotedDrafts(CudaHeadDrafter):
    """Notes the tokens of every row, and its drafts. It reads them on the host."""

    on_device = False
    noted: list[tuple[Tensor, list[int]]]

    def draft(self, rows: DraftInput) -> Drafts:
        found = super().draft(rows)
        tokens = self.runner.columns.tokens
        columns = rows.slot, rows.known, rows.number, found.ids
        for slot, known, number, ids in zip(*(one.tolist() for one in columns), strict=True):
            if number:
                self.noted.append((tokens[slot, :known].long().cpu(), ids[:number]))
        return found


class NotedOnGPU(NotedDrafts, CudaEagle3): ...


def states_of(model: Model, tokens: Tensor) -> Tensor:
    """What the layers read, of all tokens but the last."""
    kept = LayerInputs(LAYERS, torch.empty(len(tokens) - 1, 3 * model.config.width))
    blocks = -(-len(tokens) // 4)
    batch = batch_of([Piece(tokens[:-1].tolist(), 0, range(blocks))], 4)
    model.forward(batch, KVStore(model.config, blocks, 4), load("paged"), None, kept)
    return kept.rows


def drafter_on(device: str, kind: type[CudaEagle3], scheduler: Scheduler, folder: Path) -> Any:
    files = Eagle3Folder(folder)
    head = CudaEagle3Head.load(files, files.head, 64, torch.float32, device)
    ids = files.target_ids()
    return kind(scheduler.config.speculation, head, ids, None, torch.float32)


def driven(
    source: Dummy, scheduler: Scheduler, drafter: Any, asked: list[Request], depth: int
) -> dict[str, Any]:
    """What requests get, where the drafter is."""
    device = drafter._head.device
    model = CudaModel.load(source, 64, torch.float32, device=device)
    config = scheduler.config
    blocks = config.cache.num_blocks + 1, config.cache.block_size
    kv = KVStore(model.config, *blocks, torch.float32, device)
    step = config.step
    sizes = RunnerSizes(step.max_num_seqs, step.max_model_len, step.max_num_batched_tokens)
    runner = CudaRunner(model, kv, load("triton"), drafter, sizes)
    runner.reserve_host(config.preemption.swap_space)
    return drive(scheduler, runner, asked, depth)


def compare_drafts(
    device: str, source: Dummy, folder: Path, asked: list[Request], **how: Any
) -> None:
    """All drafts under a scheduler are those of a plain head."""
    truth, depth = Model.load(source), how.pop("depth", 2)
    drafting = {"num_speculative_tokens": 2, "speculation": "fixed", **how}
    scheduler = Scheduler.create(**{**SETTINGS, **drafting})
    head = head_folder(folder, source.config, **CHANGES)
    drafter = drafter_on(device, NotedOnGPU, scheduler, head)
    drafter.noted = []
    driven(source, scheduler, drafter, asked, depth)
    config = head_config(source.config, **CHANGES)
    plain = PlainHead(head_tensors(config, source.config), config)
    assert len(drafter.noted) > 1
    for tokens, drafts in drafter.noted:
        states = states_of(truth, tokens)
        assert drafts == plain.drafts(truth.plain_embedding(), tokens, states, len(drafts))
