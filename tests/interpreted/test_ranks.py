"""The runner for GPUs on two ranks: the tokens are those of the runner for a CPU."""

from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import pytest
import torch
from triton.runtime import interpreter

from paceline import Request, Scheduler
from paceline.core.constraint import Constraint
from paceline.core.masks import TokenMasks
from paceline.core.sampling import Sampling
from paceline.core.settings.load import LoadConfig
from paceline.images.processor import image_input
from paceline.runner.attention_backend import load
from paceline.runner.cuda.drafting.draft_model import CudaDraftModel
from paceline.runner.cuda.drafting.eagle3 import CudaEagle3, CudaEagle3Head
from paceline.runner.cuda.graphs.drafts import DraftGraphs
from paceline.runner.cuda.model import CudaModel
from paceline.runner.cuda.residents import CudaImages
from paceline.runner.cuda.runner import CudaRunner, RunnerSizes
from paceline.runner.draft_heads.eagle3_folder import Eagle3Folder
from paceline.runner.kv_store import KVStore
from paceline.runner.models.config import ModelConfig
from paceline.runner.models.model import Model
from paceline.runner.parallel.group import RankGroup
from paceline.runner.parallel.tokens import AwaitedDrafts
from paceline.runner.proposer import Drafter
from paceline.runner.proposers.ngram import Ngram
from paceline.runner.weights.dummy import Dummy
from paceline.wiring.model import embedding_for
from tests.conformance.architectures import Case
from tests.interpreted.host_device import large_programs, use_host
from tests.property.grammars import END, constrained_requests
from tests.runner.driving import SETTINGS, drive
from tests.runner.eagle3 import head_folder
from tests.runner.parallel.ranks import tokens_of_two_ranks
from tests.runner.support import tiny
from tests.runner.test_runner import runner_for
from tests.wiring.assembled import assembled

SIZES: dict[str, Any] = {
    "num_hidden_layers": 1,
    "hidden_size": 32,
    "head_dim": 16,
    "intermediate_size": 64,
    "vocab_size": 64,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
MODELS: dict[str, dict[str, Any]] = {
    "Gemma2ForCausalLM": {"sliding_window": 7, "hidden_activation": "gelu_pytorch_tanh"},
    "Qwen3MoeForCausalLM": EXPERTS,
}
DRAFTING = {"num_speculative_tokens": 2, "speculation": "fixed"}
SMALL_STEPS = {"max_num_seqs": 3, "max_num_batched_tokens": 8}  # graphs are filled up
# By temperature alone, by the sampler, and with scores of the prompt.
SAMPLINGS = [
    Sampling(temperature=0.7),
    Sampling(temperature=0.0, top_k=3, logprobs=1),
    Sampling(temperature=0.0, prompt_logprobs=1),
]


@pytest.fixture(autouse=True)
def few_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    large_programs(monkeypatch)
    monkeypatch.setattr("paceline.runner.attention.triton.BUSY", 8)
    one, run = Lock(), interpreter.InterpretedFunction.run

    def alone(*given: Any, **named: Any) -> Any:
        # The interpreter is at one place of one program. Before the first run of a kernel it adds
        # names to its module, which other kernels of the module look through.
        with one:
            return run(*given, **named)

    monkeypatch.setattr(interpreter.InterpretedFunction, "run", alone)


def asked(samplings: list[Sampling]) -> list[Request]:
    return [
        Request(id=f"r{i}", prompt=[5, 9, 2 + i], max_tokens=2, sampling=sampling, seed=i)
        for i, sampling in enumerate(samplings)
    ]


def runner_of(
    model: CudaModel,
    scheduler: Scheduler,
    drafter: Drafter | None = None,
    masks: TokenMasks | None = None,
) -> CudaRunner:
    """The runner of a rank. Without a drafter, there are no drafts."""
    cache, attention = scheduler.config.cache, load("triton")
    kv = KVStore(model.config, cache.num_blocks + 1, cache.block_size)
    drafter = drafter or Ngram(scheduler.config.speculation)
    return CudaRunner(model, kv, attention, drafter, RunnerSizes(3, 64, 8), masks)


@pytest.mark.parametrize("architecture", MODELS)
def test_tokens_are_those_of_the_cpu(architecture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    samplings = SAMPLINGS if architecture == "Gemma2ForCausalLM" else SAMPLINGS[:1]
    config = tiny(architectures=[architecture], **SIZES, **MODELS[architecture])
    checkpoint, settings = Dummy(config, seed=3), {**SETTINGS, **SMALL_STEPS}
    scheduler = Scheduler.create(**settings)
    due = drive(scheduler, runner_for(Model.load(checkpoint), scheduler), asked(samplings))
    use_host(monkeypatch)

    def rank(group: RankGroup, scheduler: Scheduler) -> CudaRunner:
        return runner_of(
            CudaModel.load(checkpoint, 64, torch.float32, "cpu", group=group), scheduler
        )

    assert tokens_of_two_ranks(rank, asked(samplings), settings, 2)[0] == due


def test_rank_0_drafts_for_all_and_has_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some steps are verified in a graph, and some under masks."""
    held = {"constraint": Constraint.regex("[0-4]{2}"), "eos_token_ids": (END,)}
    first, second = asked([Sampling(temperature=0.0), SAMPLINGS[1]])
    both = [
        replace(first, max_tokens=10, ignore_eos=True),
        replace(second, max_tokens=4, **held),
    ]
    config = tiny(architectures=["Qwen3ForCausalLM"], **SIZES)
    checkpoint, masks = Dummy(config, seed=3), constrained_requests(config.vocab)
    scheduler = Scheduler.create(**SETTINGS)
    whole = runner_for(Model.load(checkpoint), scheduler, masks=masks)
    due = drive(scheduler, whole, both, constrained=masks)
    use_host(monkeypatch)
    masks, drafted = constrained_requests(config.vocab), list[int]()
    captured = DraftGraphs.verify

    def noted(graphs: DraftGraphs, samples: int) -> torch.Tensor:
        drafted.append(samples)
        return captured(graphs, samples)

    monkeypatch.setattr(DraftGraphs, "verify", noted)

    def rank(group: RankGroup, scheduler: Scheduler) -> CudaRunner:
        speculation = scheduler.config.speculation
        model = CudaModel.load(checkpoint, 64, torch.float32, "cpu", group=group)
        if not group.is_first:
            return runner_of(model, scheduler, AwaitedDrafts(speculation, CudaDraftModel))
        draft = CudaModel.load(checkpoint, 64, torch.float32, "cpu")
        drafter = CudaDraftModel(speculation, draft, torch.float32)
        return runner_of(model, scheduler, drafter, masks)

    settings = {**SETTINGS, **SMALL_STEPS, **DRAFTING}
    got, scheduler = tokens_of_two_ranks(rank, both, settings, 2, masks)
    assert got == due
    assert 0 < scheduler.stats.accepted < scheduler.stats.drafted
    assert drafted


def test_rank_0_encodes_images_for_all_and_drafts_with_a_head(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The head has no embedding of its own."""
    entries = Case("qwen2_5_vl").entries
    entries["text_config"] |= {"num_hidden_layers": 1, "vocab_size": 64}
    checkpoint = Dummy(ModelConfig.of_hf(entries), seed=3)
    images = Model.load(checkpoint).images
    assert images is not None
    square, random = images.square, np.random.default_rng(3)
    pixels = random.integers(0, 256, (square, 2 * square, 3), np.uint8)
    shown = [
        replace(
            one, prompt=[7, 9, 9, *one.prompt], images=(image_input(pixels, 1, 2),), max_tokens=4
        )
        for one in asked([Sampling(temperature=0.0)])
    ]
    own = LoadConfig(device="cpu", load_format="dummy", kv_cache_gib=0.01)
    due = drive(*assembled("cpu", {"max_model_len": 64}, own, checkpoint), shown)
    head_config = {"eagle_aux_hidden_state_layer_ids": (0, 0, 0)}
    files = Eagle3Folder(head_folder(tmp_path, checkpoint.config, **head_config))
    use_host(monkeypatch)

    def rank(group: RankGroup, scheduler: Scheduler) -> CudaRunner:
        config = scheduler.config
        sizes: Any = 64, torch.float32, "cpu"
        model = CudaModel.load(checkpoint, *sizes, image_rows=config.encoder_capacity, group=group)
        drafter: Drafter = AwaitedDrafts(config.speculation, CudaEagle3)
        if group.is_first:
            head = CudaEagle3Head.load(files, files.head, *sizes)
            embedding = embedding_for(files, checkpoint, group)
            given = head, files.target_ids(), embedding, torch.float32
            drafter = CudaEagle3(config.speculation, *given)
        runner = runner_of(model, scheduler, drafter)
        assert model.images is not None
        runner.use_images(CudaImages(model.images, model, runner.state))
        return runner

    settings = {**SETTINGS, **SMALL_STEPS, **DRAFTING, "encoder_cache_size": 2}
    got, scheduler = tokens_of_two_ranks(rank, shown, settings, 2)
    assert got == due
    assert scheduler.stats.drafted
