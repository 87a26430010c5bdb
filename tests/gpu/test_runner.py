"""The runner on a GPU under the real scheduler: the CPU's tokens, however they are scheduled."""

from typing import Any

import pytest
import torch

from paceline import Request, Scheduler
from paceline.core.errors import ConfigError
from paceline.core.sampling import Sampling
from paceline.runner.attention_backend import load
from paceline.runner.cuda.model import CUDA, CudaModel
from paceline.runner.models.model import Model
from paceline.runner.models.traits import find
from paceline.runner.weights.dummy import Dummy
from tests.conformance.architectures import Case, architectures, spec_of
from tests.gpu.runners import gpu_runner
from tests.gpu.support import ON_GPU
from tests.runner.driving import SETTINGS, TIGHT, WAYS, drive, for_states, requests
from tests.runner.support import tiny
from tests.runner.test_runner import runner_for

pytestmark = ON_GPU

ALL_WAYS: dict[str, dict[str, Any]] = WAYS | {
    "drafted": {"num_speculative_tokens": 3},
    "drafted, ahead": {"num_speculative_tokens": 2, "depth": 3},
}
# With seed 11, one draw is 1e-6 from the edge between two tokens, as near as devices round.
SEEDS = {"gemma4": 12}


def is_known(family: str) -> bool:
    """Does the GPU compute it, and do requests need no images?"""
    return not (find(family).vision or CUDA.supports(spec_of(Case(family))))


def on_gpu(
    model: CudaModel, asked: list[Request], depth: int = 1, name: str = "triton", **changes: Any
) -> tuple[dict[str, Any], Scheduler]:
    scheduler = Scheduler.create(**for_states({**SETTINGS, **changes}, model.config))
    return drive(scheduler, gpu_runner(model, scheduler, name), asked, depth), scheduler


def on_cpu(model: Model, asked: list[Request], **changes: Any) -> dict[str, Any]:
    scheduler = Scheduler.create(**for_states({**SETTINGS, **changes}, model.config))
    return drive(scheduler, runner_for(model, scheduler, "sdpa"), asked)


def both(family: str) -> tuple[CudaModel, Model]:
    source = Dummy(Case(family.lower()).config(), seed=3)
    return CudaModel.load(source, 64, torch.float32), Model.load(source)


def test_who_comes_may_read_what_another_writes_in_the_same_step() -> None:
    """Both rows have one position, and the newcomer's prefix ends with the other's."""
    model, truth = both("Qwen3")
    first = Request(id="first", prompt=[5, 9, 2], max_tokens=8)
    token = on_cpu(truth, [first])["first"][0]
    second = Request(id="second", prompt=[5, 9, 2, token, 7], max_tokens=8)
    scheduler = Scheduler.create(**SETTINGS)
    runner = gpu_runner(model, scheduler)
    scheduler.submit(first, now=0.0)
    plan = scheduler.plan(now=0.0)
    runner.launch(plan)
    scheduler.commit(plan, runner.wait(), now=0.0)
    got = drive(scheduler, runner, [second])
    assert scheduler.stats.prefix_hits == len(second.prompt) - 1
    assert got["second"] == on_cpu(truth, [second])["second"]


def test_drafts_of_one_do_not_reach_beyond_the_end_of_another() -> None:
    """One is about to end at the model's length, and the other still drafts."""
    gpu, cpu = both("Qwen3")
    asked = [Request(id="ends", prompt=[7] * 25), Request(id="drafts", prompt=[5, 6] * 3)]
    got, scheduler = on_gpu(gpu, asked, max_model_len=32, num_speculative_tokens=8)
    assert got == on_cpu(cpu, asked, max_model_len=32)
    assert scheduler.stats.drafted


@pytest.fixture(scope="module")
def model() -> CudaModel:
    return both("Qwen3")[0]


@pytest.mark.parametrize("family", [one for one in architectures() if is_known(one)])
@pytest.mark.parametrize("sampling", [Sampling(temperature=0.0), Sampling(temperature=0.9)])
def test_tokens_are_those_of_the_cpu(family: str, sampling: Sampling) -> None:
    gpu, cpu = both(family)
    asked = requests(sampling=sampling, seed=SEEDS.get(family, 11))
    assert on_gpu(gpu, asked)[0] == on_cpu(cpu, asked)


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=0.8, top_p=0.8),
        Sampling(temperature=0.8, top_k=5, min_p=0.05),
        Sampling(temperature=0.0, repetition_penalty=1.3, presence_penalty=0.4),
        Sampling(temperature=0.7, frequency_penalty=0.5, logit_bias={3: 4.0}, logprobs=3),
    ],
)
def test_every_way_of_sampling_is_that_of_the_cpu(sampling: Sampling) -> None:
    gpu, cpu = both("Llama")
    asked = requests(sampling=sampling, seed=11)
    assert on_gpu(gpu, asked, depth=2)[0] == on_cpu(cpu, asked)


def test_families_and_beams_are_those_of_the_cpu() -> None:
    gpu, cpu = both("Llama")
    fields: dict[str, Any] = {"prompt": [3, 1, 4, 1, 5, 9], "max_tokens": 9, "seed": 20}
    drawn = {"sampling": Sampling(temperature=1.0)}
    for kind in ({"n": 3, **drawn}, {"n": 2, "best_of": 4, **drawn}, {"n": 2, "beam_width": 3}):
        asked = [Request(id="a", **fields, **kind)]
        assert on_gpu(gpu, asked)[0] == on_cpu(cpu, asked)


@pytest.mark.parametrize("way", ALL_WAYS)
@pytest.mark.parametrize("sampling", [Sampling(temperature=0.0), Sampling(temperature=0.9)])
def test_tokens_do_not_depend_on_the_schedule(
    model: CudaModel, way: str, sampling: Sampling
) -> None:
    asked = requests(sampling=sampling, seed=11)
    plainly, _ = on_gpu(model, asked)
    got, scheduler = on_gpu(model, asked, **ALL_WAYS[way])
    assert got == plainly
    if "num_blocks" in ALL_WAYS[way] and ALL_WAYS[way]["num_blocks"] == TIGHT["num_blocks"]:
        assert scheduler.stats.preemptions, "the pool was not tight"
    if "swapped" in way:
        assert scheduler.stats.swapped_in_blocks, "nothing was swapped"


def test_a_request_does_not_depend_on_its_neighbours(model: CudaModel) -> None:
    asked = requests(sampling=Sampling(temperature=0.7), seed=3)
    together, _ = on_gpu(model, asked)
    for request in asked:
        assert on_gpu(model, [request])[0][request.id] == together[request.id]


def test_the_backends_agree_under_the_scheduler() -> None:
    """In bf16 near-ties fall either way, so most of the tokens are the same, not all."""
    try:
        load("flashinfer")
    except ConfigError:
        pytest.skip("no flashinfer")
    config = tiny(
        architectures=["Qwen3ForCausalLM"],
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        hidden_size=256,
    )
    gpu = CudaModel.load(Dummy(config, seed=3), 64)
    changes = {"block_size": 16, "num_blocks": 32, "depth": 2}
    got = [on_gpu(gpu, requests(), name=name, **changes)[0] for name in ("triton", "flashinfer")]
    pairs = [pair for key in got[0] for pair in zip(got[0][key], got[1][key], strict=True)]
    assert sum(one == other for one, other in pairs) > 0.7 * len(pairs)


def test_logits_that_are_no_numbers_fail_one_row(model: CudaModel) -> None:
    scheduler = Scheduler.create(**SETTINGS, enable_prefix_caching=False)
    runner = gpu_runner(model, scheduler)
    for name in "ab":
        scheduler.submit(Request(id=name, prompt=[1, 2, 3, 4, 5], max_tokens=4), now=0.0)  # pyright: ignore[reportArgumentType]
    plan = scheduler.plan(now=0.0)
    runner.launch(plan)
    scheduler.commit(plan, runner.wait(), now=0.0)
    (block, *_) = plan.admitted[0].blocks
    runner._kv.content[block].fill_(float("nan"))  # pyright: ignore[reportPrivateUsage]
    plan = scheduler.plan(now=0.0)
    runner.launch(plan)
    result = runner.wait()
    assert [plan.rows.labels[one.row] for one in result.failed] == ["a"]
    assert result.count.tolist() == [0, 1]
    told = scheduler.commit(plan, result, now=0.0).to_dict()
    assert told["a"]["finish"] == "error"
    assert told["b"]["tokens"]
