"""Prompts with images on a GPU runner: the tokens are those of the runner for a CPU."""

from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
import torch

from paceline import Scheduler
from paceline.runner.attention.backend import load
from paceline.runner.cuda import model as cuda_model
from paceline.runner.cuda.adapted_products import AdapterSizes
from paceline.runner.cuda.items import CudaItems
from paceline.runner.cuda.kernels import few_rows
from paceline.runner.cuda.model import CudaModel
from paceline.runner.cuda.runner import CudaRunner, RunnerSizes
from paceline.runner.kv_store import KVStore
from paceline.runner.models.model import Model
from paceline.runner.proposers.ngram import Ngram
from paceline.runner.weights.files import open_checkpoint
from tests.golden.image_models import image_model
from tests.gpu.cuda_backend import LaidOutForGPU
from tests.interpreted.host_device import use_host
from tests.runner.adapters.support import Merged, write_adapter
from tests.runner.driving import SETTINGS, drive
from tests.runner.test_resident_items import TIGHT_ENCODER, asked, outputs, plain_outputs

SMALL_STEPS = {"max_num_seqs": 2, "max_num_batched_tokens": 16, "num_speculative_tokens": 1}


@pytest.fixture(autouse=True)
def few_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter takes a while for each program, however large it is."""
    large = few_rows.Tuning(lines=64, chunk=32, stages=1, early=1)
    monkeypatch.setattr(few_rows, "tuning", lambda width, outputs: large)
    monkeypatch.setattr("paceline.runner.attention.triton.BUSY", 8)


def test_tokens_are_those_of_the_cpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of two requests that share an image, one has an adapter."""
    use_host(monkeypatch)
    scheduler = Scheduler.create(**{**SETTINGS, **TIGHT_ENCODER, **SMALL_STEPS})
    config = scheduler.config
    checkpoint = open_checkpoint(image_model("SmolVLM").folder)
    sizes = config.encoder_capacity, AdapterSizes(1, 4)
    with mock.patch.object(cuda_model, "DenseLinear", LaidOutForGPU):
        model = CudaModel.load(checkpoint, 64, torch.float32, "cpu", *sizes)
    kv = KVStore(model.config, config.cache.num_blocks + 1, config.cache.block_size)
    runner = CudaRunner(
        model, kv, load("triton"), Ngram(config.speculation), RunnerSizes(2, 64, 16)
    )
    assert not runner.capabilities.items
    assert model.images is not None
    runner.use_items(CudaItems(model.images, model, runner.state))
    assert runner.capabilities.items
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
    assert int(runner.state.tokens.max()) < model.first_item_id, "ids of rows are left behind"
