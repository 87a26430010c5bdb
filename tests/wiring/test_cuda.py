"""An engine for a GPU, assembled on a CPU: kernels are recorded instead of run."""

import os
import re
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("the interpreter compiles nothing", allow_module_level=True)

from paceline import Request, Scheduler
from paceline.core.adapter import NO_ADAPTERS, AdapterConfig
from paceline.core.constraint import Constraint
from paceline.core.errors import ConfigError
from paceline.core.plan import Plan
from paceline.core.sampling import Sampling
from paceline.core.settings.config import Config
from paceline.core.settings.load import LoadConfig
from paceline.engine.transport.plan_wire import EncodedPlan, PlanWriter
from paceline.images.processor import image_input
from paceline.runner import attention_backend
from paceline.runner.adapters.weights import AdapterWeights
from paceline.runner.attention.triton import Triton
from paceline.runner.attention_backend import AttentionSupport
from paceline.runner.cuda import device_memory
from paceline.runner.cuda import runner as runners
from paceline.runner.cuda.drafting.eagle3 import CudaEagle3
from paceline.runner.cuda.gemm.library import Library
from paceline.runner.cuda.model import CudaModel
from paceline.runner.cuda.residents import RING_BYTES
from paceline.runner.draft_heads.eagle3_folder import Eagle3Folder
from paceline.runner.kv_store import KVStore
from paceline.runner.models.config import ModelConfig
from paceline.runner.parallel.divide import Shard
from paceline.runner.parallel.group import RankGroup
from paceline.runner.weights.dummy import Dummy
from paceline.wiring import cuda
from paceline.wiring.device import LoadedRunner, ModelLoad
from paceline.wiring.ranks.rank_main import RankLoop
from paceline.wiring.settings import Hardware, resolve, sort_settings
from tests.conformance.architectures import Case
from tests.golden.image_sizes import GEMMA, QWEN, random_image
from tests.property.grammars import constrained_requests
from tests.runner.cuda.launches import Launches
from tests.runner.driving import drive
from tests.runner.eagle3 import head_folder
from tests.runner.support import tiny

# As in real models, sizes are multiples of 16.
SHAPE = {"hidden_size": 64, "head_dim": 32, "intermediate_size": 128, "vocab_size": 128}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
DELTA: dict[str, Any] = {
    "num_hidden_layers": 2,
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
MODELS: dict[str, dict[str, Any]] = {
    "Qwen3ForCausalLM": {},
    "Gemma2ForCausalLM": {"sliding_window": 7, "hidden_activation": "gelu_pytorch_tanh"},
    "Gemma3ForCausalLM": {
        "num_hidden_layers": 5,  # one of them sees everything, so there are five block tables
        "sliding_window": 7,
        "sliding_window_pattern": 3,
        "hidden_activation": "gelu_pytorch_tanh",
    },
    "Qwen3MoeForCausalLM": EXPERTS,
    "Qwen3_5ForCausalLM": DELTA,
}
SETTINGS: dict[str, Any] = {
    "max_num_seqs": 24,
    "max_num_batched_tokens": 2304,  # some kernels differ from 2,048 positions on
    "max_model_len": 128,
    "num_gpu_blocks_override": 300,
}
WAYS: dict[str, dict[str, Any]] = {
    "plainly": {},
    "in small pieces": {"max_num_batched_tokens": 24},
    "few": {"max_num_seqs": 3},
    "drafted": {"num_speculative_tokens": 3, "speculation": "fixed"},
    "drafted by a model": {
        "num_speculative_tokens": 3,
        "speculation": "fixed",
        "proposer": "draft_model",
        "preemption_mode": "swap",
        "swap_space": 0.001,
        "num_gpu_blocks_override": 40,
    },
    "drafted by a head": {
        "num_speculative_tokens": 3,
        "speculation": "fixed",
        "proposer": "eagle3",
        "preemption_mode": "swap",
        "swap_space": 0.001,
        "num_gpu_blocks_override": 40,
    },
    "swapped": {"num_gpu_blocks_override": 40, "preemption_mode": "swap", "swap_space": 0.001},
}


def zeros(kernel: Library, x: Tensor) -> Tensor:
    return x.new_zeros(len(x), len(kernel.numbers(x.dtype)))


def on_host(config: ModelConfig, blocks: int, size: int, *rest: Any) -> KVStore:
    dtype, _, groups = rest
    return KVStore(config, blocks, size, dtype, "cpu", groups)


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Launches:
    """Everything that is on a GPU otherwise is in memory of the host."""
    monkeypatch.setattr(Library, "plain", zeros)
    monkeypatch.setattr(Library, "add_to", lambda *_: None)
    monkeypatch.setattr(cuda, "free_bytes", lambda _: 1 << 30)
    monkeypatch.setattr(cuda, "ranks_on_gpu", lambda _: 1)
    for module in (cuda, device_memory):
        monkeypatch.setattr(module, "KVStore", on_host)
    monkeypatch.setattr(CudaModel, "load", partial(CudaModel.load, device="cpu"))
    monkeypatch.setattr(CudaEagle3, "load_head", partial(CudaEagle3.load_head, device="cpu"))
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: None)
    return Launches(monkeypatch)


def assembled(architecture: str = "Qwen3ForCausalLM", **settings: Any) -> tuple[Scheduler, Any]:
    own, loaded = loaded_with(architecture, **settings)
    return cuda.started(loaded, own, Scheduler), loaded.runner


def loaded_with(
    architecture: str, group: RankGroup | None = None, **settings: Any
) -> tuple[LoadConfig, LoadedRunner]:
    masks, adapters = settings.pop("masks", None), settings.pop("adapters", NO_ADAPTERS)
    config = settings.pop("config", None)
    config = config or tiny(architectures=[architecture], **{**SHAPE, **MODELS[architecture]})
    rest, own = sort_settings({**SETTINGS, **settings})
    # Another number of heads and of layers: its kernels are others.
    smaller = {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}
    draft: Any = None
    if settings.get("proposer") == "draft_model":
        draft = Dummy(tiny(**SHAPE, **smaller))
    if settings.get("proposer") == "eagle3":
        with TemporaryDirectory() as folder:
            draft = Eagle3Folder(head_folder(Path(folder), config, intermediate_size=96))
    given: dict[str, Any] = {"masks": masks, "draft": draft, "adapters": adapters}
    return own, cuda.load(ModelLoad(rest, own, Dummy(config, seed=3), **given), group)


def random_requests(random: Random) -> list[Request]:
    """Some are prompts that were seen before, some want more than tokens."""
    prompts = [[random.randrange(1, 9)] * random.randrange(1, 100) for _ in range(14)]
    prompts += [prompt[: random.randrange(1, 1 + len(prompt))] for prompt in prompts]
    samplings = [Sampling(temperature=0.0)] * 4 + [
        Sampling(top_k=3, logprobs=2),
        Sampling(top_p=0.5, repetition_penalty=1.2, logit_bias={5: 1.0}),
        Sampling(prompt_logprobs=1),
        Sampling(min_p=0.1, prompt_logprobs=0, presence_penalty=0.5),
    ]
    return [
        Request(
            id=f"r{number}",
            prompt=prompt,
            max_tokens=random.randrange(1, 9),
            ignore_eos=True,
            sampling=random.choice(samplings),
            n=random.choice([1, 1, 1, 2]),
            constraint=random.choice(
                [None, Constraint.regex("0*"), Constraint.regex("(0|1)23456")]
            ),
        )
        for number, prompt in enumerate(prompts)
    ]


@pytest.mark.parametrize(
    ("architecture", "way"),
    [*product(["Qwen3ForCausalLM"], WAYS), *product(list(MODELS)[1:], ["plainly"])],
)
def test_requests_compile_nothing(architecture: str, way: str, launches: Launches) -> None:
    masks = constrained_requests(SHAPE["vocab_size"])
    scheduler, runner = assembled(architecture, masks=masks, **WAYS[way])
    ready, requests = set(launches.seen), random_requests(Random(3))
    for one in requests[:6]:
        drive(scheduler, runner, [one], 2, masks)
    drive(scheduler, runner, requests[6:], 2, masks)
    assert launches.seen - ready == set()


def image_config() -> ModelConfig:
    rope = {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [4, 6, 6]}
    text = {**QWEN["text_config"], **SHAPE, "rope_parameters": rope}
    vision = {**QWEN["vision_config"], "out_hidden_size": SHAPE["hidden_size"]}
    kind = {"architectures": ["Qwen2_5_VLForConditionalGeneration"], "model_type": "qwen2_5_vl"}
    return ModelConfig.of_hf({**QWEN, **kind, "text_config": text, "vision_config": vision})


def with_image(request: Request, random: Random) -> Request:
    """The request with an image at the beginning of its prompt, or soon after."""
    rows, columns = random.randrange(1, 4), random.randrange(1, 4)
    pixels = random_image(8 * rows, 8 * columns, rows)
    image = image_input(pixels, random.choice([0, 3]), rows * columns)
    prompt = [1] * image.offset + [9] * image.length + request.prompt[:80].tolist()
    return replace(request, prompt=prompt, images=(image,))


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # towers run on this CPU
@pytest.mark.parametrize("way", ["plainly", "drafted by a model", "drafted by a head"])
def test_prompts_with_images_compile_nothing(way: str, launches: Launches) -> None:
    """In a model whose positions have rows and columns; some requests have no image."""
    scheduler, runner = assembled(config=image_config(), encoder_cache_size=32, **WAYS[way])
    random, ready = Random(3), set(launches.seen)
    plain = [replace(one, constraint=None) for one in random_requests(random)]
    requests = [with_image(one, random) if random.random() < 0.7 else one for one in plain]
    for one in requests[:4]:
        drive(scheduler, runner, [one], 2)
    drive(scheduler, runner, requests[4:], 2)
    assert scheduler.stats.encoder_hits
    assert launches.seen - ready == set()


def whole_config() -> ModelConfig:
    """Positions of an image read each other."""
    text = {**GEMMA["text_config"], **SHAPE}
    kind = {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3"}
    return ModelConfig.of_hf({**GEMMA, **kind, "text_config": text})


def with_tile(request: Request, random: Random) -> Request:
    """The request with an image of the one size that the model reads."""
    image = image_input(random_image(30, 30, random.randrange(3)), random.choice([0, 3]), 9)
    prompt = [1] * image.offset + [9] * image.length + request.prompt[:80].tolist()
    return replace(request, prompt=prompt, images=(image,))


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")
@pytest.mark.parametrize("way", ["plainly", "few", "drafted"])
def test_images_that_are_read_whole_compile_nothing(way: str, launches: Launches) -> None:
    whole = {"config": whole_config(), "disable_chunked_mm_input": True}
    scheduler, runner = assembled(**whole, **WAYS[way])
    random, ready = Random(3), set(launches.seen)
    plain = [replace(one, constraint=None) for one in random_requests(random)]
    requests = [with_tile(one, random) if random.random() < 0.7 else one for one in plain]
    for one in requests[:4]:
        drive(scheduler, runner, [one], 2)
    drive(scheduler, runner, requests[4:], 2)
    assert scheduler.stats.encoder_hits
    assert launches.seen - ready == set()


class NotedGroup(RankGroup):
    """One of two ranks by itself. It notes what would be exchanged."""

    def __init__(self, rank: int, backend: str = "nccl") -> None:
        self.shard, self.backend, self.noted = Shard(rank, 2), backend, list[Any]()

    def _note(self, name: str, tensor: Tensor) -> Tensor:
        self.noted.append((name, tuple(tensor.shape), tensor.dtype))
        return tensor

    def sum(self, part: Tensor) -> Tensor:
        return self._note("sum", part)

    def share(self, tensor: Tensor) -> Tensor:
        return self._note("share", tensor)

    def least(self, number: int) -> int:
        self.noted.append("least")
        return number

    def gather(self, columns: Tensor) -> Tensor:
        found = self._note("gather", columns)
        return torch.cat((found, found), dim=1) if self.is_first else found[:, :0]


class Sending:
    """Rank 0, whose plans are kept as the other ranks get them."""

    def __init__(self, runner: Any) -> None:
        self._runner, self._writer, self.sent = runner, PlanWriter(), list[EncodedPlan]()
        self.capabilities, self.wait = runner.capabilities, runner.wait
        self.is_lost, self.close = runner.is_lost, runner.close

    def launch(self, plan: Plan) -> None:
        self.sent.append(self._writer.encoded(plan))
        self._runner.launch(plan)


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")
@pytest.mark.parametrize("way", ["drafted", "drafted by a head"])
def test_ranks_exchange_the_same_in_the_same_order(way: str, launches: Launches) -> None:
    """While graphs are captured and requests run; otherwise they would wait for each other forever.
    Rank 0 alone has masks, a drafter with weights, and an encoder of images."""
    masks, random = constrained_requests(SHAPE["vocab_size"]), Random(3)
    requests = random_requests(random)[::2]
    settings: dict[str, Any] = {"max_num_seqs": 8, "max_num_batched_tokens": 64, **WAYS[way]}
    if way == "drafted by a head":
        settings |= {"config": image_config(), "encoder_cache_size": 32}
        requests = [with_image(one, random) for one in requests]
    else:
        settings["config"] = tiny(**SHAPE, num_hidden_layers=5)  # more than a dry run computes
    first, second = NotedGroup(0), NotedGroup(1)
    own, loaded = loaded_with("Qwen3ForCausalLM", first, masks=masks, **settings)
    runner = Sending(loaded.runner)
    scheduler = cuda.started(replace(loaded, runner=runner), own, Scheduler)
    drive(scheduler, runner, requests, 2, masks)
    assert scheduler.stats.drafted
    _, other = loaded_with("Qwen3ForCausalLM", second, **settings)
    assert other.config == loaded.config
    no_tasks: Any = None
    loop = RankLoop(other.runner, no_tasks, cuda.DEPTH)
    for message in runner.sent:
        loop.follow(message)
    assert len(first.noted) > 100
    assert second.noted == first.noted


ADAPTED: dict[str, Any] = {
    "adapters": AdapterConfig(enable_lora=True, max_lora_rank=8),
    "max_loras": 2,
}


@pytest.mark.parametrize("way", ["plainly", "drafted by a model"])
def test_requests_with_adapters_compile_nothing(way: str, launches: Launches) -> None:
    """Some have none, and are alone in a step or beside others."""
    masks = constrained_requests(SHAPE["vocab_size"])
    scheduler, runner = assembled(masks=masks, **WAYS[way], **ADAPTED)
    for name in "xyz":
        runner.host_adapters.keep(name, AdapterWeights(name, 0, {}))
    names, random = ["", "", "x", "y", "z"], Random(3)
    requests = [replace(one, adapter=random.choice(names)) for one in random_requests(random)]
    ready = set(launches.seen)
    for one in requests[:6]:
        drive(scheduler, runner, [one], 2, masks)
    drive(scheduler, runner, requests[6:], 2, masks)
    assert launches.seen - ready == set()


def test_steps_without_adapters_launch_what_they_launch_otherwise(launches: Launches) -> None:
    def seen(**more: Any) -> set[Any]:
        scheduler, runner = assembled(max_num_seqs=8, max_num_batched_tokens=64, **more)
        launches.seen.clear()
        drive(scheduler, runner, random_requests(Random(3)), depth=2)
        return set(launches.seen)

    assert seen() == seen(**ADAPTED)


class DecodesOnly(Triton):
    """Attention without graphs for steps of any rows."""

    support = AttentionSupport(device="cuda")


def with_decodes_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the name "mine" stand for it."""
    load = attention_backend.load
    monkeypatch.setattr(
        attention_backend, "load", lambda name: DecodesOnly() if name == "mine" else load(name)
    )


def test_adapters_need_graphs_for_all_steps(
    launches: Launches, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_decodes_only(monkeypatch)
    with pytest.raises(ConfigError, match="enable_lora needs attention 'triton' on a GPU"):
        assembled(**ADAPTED, attention="mine")


def test_attention_without_graphs_for_all_steps_starts(
    launches: Launches, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_decodes_only(monkeypatch)
    _, runner = assembled(attention="mine")
    assert runner.mixed is None


def test_enforce_eager_starts_without_graphs_and_warm_up(
    launches: Launches, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("it warms up")

    made: list[bool] = []
    monkeypatch.setattr(runners, "GraphMemory", lambda: made.append(True))
    assembled()
    assert made == [True, True]  # for the largest step, and for requests
    made.clear()
    monkeypatch.setattr(runners.CudaRunner, "warm", refuse)
    monkeypatch.setattr(cuda.WarmUp, "run", refuse)
    scheduler, runner = assembled(enforce_eager=True)
    assert not made
    drive(scheduler, runner, random_requests(Random(3)), depth=2)


@pytest.mark.parametrize("swap_space", [0.0, 0.001])
def test_every_store_gets_memory_to_swap_through(
    swap_space: float, launches: Launches, monkeypatch: pytest.MonkeyPatch
) -> None:
    free: dict[str, int] = {}

    def noted(settings: Any, own: Any, model: Any, gpu: Hardware, *rest: Any) -> Config:
        free[settings.get("proposer", "ngram")] = gpu.free_bytes
        return resolve(settings, own, model, gpu, *rest)

    monkeypatch.setattr(cuda, "resolve", noted)
    monkeypatch.setattr(cuda, "free_bytes", lambda _: 1 << 34)
    for way in ("drafted", "drafted by a model", "drafted by a head"):
        mode = {"preemption_mode": "swap"} if swap_space else {"preemption_mode": "recompute"}
        loaded_with("Qwen3ForCausalLM", **{**WAYS[way], **mode, "swap_space": swap_space})
    ring = RING_BYTES if swap_space else 0
    assert free["ngram"] - free["draft_model"] == ring
    assert free["draft_model"] - free["eagle3"] == ring


def test_ranks_over_gloo_start_without_graphs_and_warm_up(
    launches: Launches, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("it warms up")

    monkeypatch.setattr(runners.CudaRunner, "warm", refuse)
    monkeypatch.setattr(cuda.WarmUp, "run", refuse)
    own, loaded = loaded_with("Qwen3ForCausalLM", NotedGroup(0, "gloo"))
    assert not own.enforce_eager
    cuda.started(loaded, own, Scheduler)


def test_the_log_says_how_far_the_start_is(
    launches: Launches, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    assembled()
    stages = [line.partition(":")[0] for line in caplog.messages]
    assert "kernels by rows: 2 x down 64 x 128 in bfloat16: one_row up to 1, library" in caplog.text
    others = ("KV", "kernels by rows", "start")
    found = [stage for stage in dict.fromkeys(stages) if not any(one in stage for one in others)]
    assert found == [
        "loading weights",
        "weights are loaded; running the largest step once, to measure its memory",
        "capturing CUDA graphs",
        "running steps without graphs once",
    ]
    assert stages.count("capturing CUDA graphs") == cuda.LINES
    assert re.search(r"capturing CUDA graphs: \d+ of \d+", caplog.text)


def test_models_with_mamba_1_do_not_draft_on_a_gpu() -> None:
    settings = {"num_speculative_tokens": 2, "max_model_len": 64}
    types = torch.bfloat16, torch.bfloat16
    with pytest.raises(ConfigError, match=r"rejected drafts would stay in the states of 'jamba'"):
        cuda.drafter_of(settings, None, Dummy(Case("jamba").config()), types, None)
    drafter = cuda.drafter_of(settings, None, Dummy(Case("qwen3_5").config()), types, None)
    assert drafter.config.num_speculative_tokens == 2
