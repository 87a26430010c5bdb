"""Prompts with images on a GPU runner: the tokens are those of the runner for a CPU."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from paceline import Scheduler
from paceline.runner.attention_backend import load
from paceline.runner.cuda.adapters import AdapterSizes
from paceline.runner.cuda.drafting.draft_model import CudaDraftModel
from paceline.runner.cuda.model import CudaModel
from paceline.runner.cuda.residents import CudaImages
from paceline.runner.cuda.runner import CudaRunner, RunnerSizes
from paceline.runner.kv_store import KVStore
from paceline.runner.models.model import Model
from paceline.runner.proposer import Drafter, DraftInput, Drafts
from paceline.runner.proposers.ngram import Ngram
from paceline.runner.weights.checkpoint import Checkpoint
from paceline.runner.weights.dummy import Dummy
from paceline.runner.weights.files import open_checkpoint
from tests.golden.image_models import image_model
from tests.interpreted.host_device import large_programs, use_host
from tests.runner.adapters.support import Merged, write_adapter
from tests.runner.driving import SETTINGS, drive, for_states
from tests.runner.support import Piece, batch_of, tiny
from tests.runner.test_resident_images import (
    TIGHT_ENCODER,
    WHOLE,
    asked,
    outputs,
    plain_outputs,
)

SMALL_STEPS = {"max_num_seqs": 2, "max_num_batched_tokens": 16, "num_speculative_tokens": 1}
ONE_BY_ONE = {
    "max_num_seqs": 1,
    "max_num_batched_tokens": 8,
    "num_speculative_tokens": 1,
    "speculation": "fixed",
}


@pytest.fixture(autouse=True)
def few_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter takes a while for each program, however large it is."""
    large_programs(monkeypatch)
    monkeypatch.setattr("paceline.runner.attention.triton.BUSY", 2)


def image_runner(
    model: CudaModel, scheduler: Scheduler, drafter: Drafter | None = None
) -> CudaRunner:
    config = scheduler.config
    drafter = drafter or Ngram(config.speculation)
    kv = KVStore(model.config, config.cache.num_blocks + 1, config.cache.block_size)
    sizes = config.step.max_num_seqs, config.step.max_model_len, config.step.max_num_batched_tokens
    runner = CudaRunner(model, kv, load("triton"), drafter, RunnerSizes(*sizes))
    assert not runner.capabilities.images
    assert model.images is not None
    runner.use_images(CudaImages(model.images, model, runner.state))
    assert runner.capabilities.images
    return runner


def test_tokens_are_those_of_the_cpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of two requests that share an image, one has an adapter."""
    use_host(monkeypatch)
    scheduler = Scheduler.create(**{**SETTINGS, **TIGHT_ENCODER, **SMALL_STEPS})
    config = scheduler.config
    checkpoint = open_checkpoint(image_model("SmolVLM").folder)
    sizes = config.encoder_capacity, AdapterSizes(1, 4)
    model = CudaModel.load(checkpoint, 64, torch.float32, "cpu", *sizes)
    runner = image_runner(model, scheduler)
    adapter = write_adapter(tmp_path, checkpoint.config, target_modules=".*text_model.*proj")
    host = runner.host_adapters
    assert host is not None
    host.keep("x", host.read(str(adapter)))
    first, second = (replace(one, max_tokens=2) for one in asked("SmolVLM")[:2])
    got = drive(scheduler, runner, [first, replace(second, adapter="x")], depth=2)
    due, _ = outputs(Model.load(Merged(checkpoint, adapter)), [second])
    assert due["r1"] != plain_outputs("SmolVLM")["r1"][:2]
    assert got == {"r0": plain_outputs("SmolVLM")["r0"][:2], "r1": due["r1"]}
    assert scheduler.stats.encoded == 8
    assert int(runner.state.tokens.max()) < model.first_image_id, "ids of rows are left behind"


def on_host(source: Checkpoint, rows: int = TIGHT_ENCODER["encoder_cache_size"]) -> CudaModel:
    return CudaModel.load(source, 64, torch.float32, "cpu", rows)


class NotedDraftModel(CudaDraftModel):
    """Notes the tokens of rows, and their drafts. It reads them on the host."""

    on_device = False
    noted: list[tuple[list[int], int]]

    def draft(self, rows: DraftInput) -> Drafts:
        found, tokens = super().draft(rows), self.runner.columns.tokens
        for slot, known, (draft,) in zip(rows.slot, rows.known, found.ids.tolist(), strict=True):
            self.noted.append((tokens[slot, :known].tolist(), draft))
        return found


def test_positions_have_rows_and_columns_and_a_draft_model_reads_tokens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In chunked prompts, of which the second finds the first in the cache. The third request has
    no image, and the slot of those that had one."""
    use_host(monkeypatch)
    scheduler = Scheduler.create(**{**SETTINGS, **TIGHT_ENCODER, **ONE_BY_ONE})
    model = on_host(open_checkpoint(image_model("Qwen2_5_VL").folder))
    source = Dummy(tiny(num_hidden_layers=1, vocab_size=model.config.vocab), seed=4)
    drafter = NotedDraftModel(scheduler.config.speculation, on_host(source), torch.float32)
    drafter.noted = []
    one, _, _, _, text = (replace(one, max_tokens=3) for one in asked("Qwen2_5_VL"))
    runner = image_runner(model, scheduler, drafter)
    got = drive(scheduler, runner, [one, replace(one, id="again"), text], depth=2)
    due = {name: tokens[:3] for name, tokens in plain_outputs("Qwen2_5_VL").items()}
    assert got == {"r0": due["r0"], "again": due["r0"], "r4": due["r4"]}
    assert scheduler.stats.prefix_hits
    assert drafter.noted
    truth = Model.load(source)
    for tokens, draft in drafter.noted:
        assert max(tokens) < model.first_image_id
        batch, kv = batch_of([Piece(tokens, 0, range(5))], 4), KVStore(source.config, 5, 4)
        logits = truth.logits(truth.forward(batch, kv, load("paged"), batch.sample_at))
        assert draft == int(logits.argmax())


@pytest.mark.parametrize("name", ["Qwen3VL", "Qwen3_5"])
def test_prompts_in_chunks_that_begin_within_an_image(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of layers after the first that read images too, and of layers with states."""
    use_host(monkeypatch)
    model = on_host(open_checkpoint(image_model(name).folder))
    small = {**TIGHT_ENCODER, "max_num_seqs": 1, "max_num_batched_tokens": 8}
    settings = for_states({**SETTINGS, **small}, model.config)
    scheduler = Scheduler.create(**settings)
    assert (model.deep_images is not None) == (name == "Qwen3VL")
    one = replace(asked(name)[0], max_tokens=1)
    due, _ = outputs(image_model(name).ours(), [one], **settings)
    assert drive(scheduler, image_runner(model, scheduler), [one]) == due


@pytest.mark.parametrize("name", ["Gemma3", "Gemma4", "Gemma4 small"])
def test_positions_of_an_image_read_each_other(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In all layers, in those with a window, or in none; layers may have inputs of their own. The
    second request finds a part of the first, which ends in an image."""
    use_host(monkeypatch)
    small = {**WHOLE, "max_num_seqs": 1, "block_size": 2, "num_blocks": 128}
    scheduler = Scheduler.create(**{**SETTINGS, **small})
    checkpoint = open_checkpoint(image_model(name).folder)
    model = on_host(checkpoint, scheduler.config.encoder_capacity)
    one = replace(asked(name)[0], max_tokens=2)
    requests = [one, replace(one, id="again")]
    due = plain_outputs(name)["r0"][:2]
    assert drive(scheduler, image_runner(model, scheduler), requests) == {"r0": due, "again": due}
    assert scheduler.stats.prefix_hits
