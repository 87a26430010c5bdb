"""A model on two processes: the same tokens as on one, and what happens when a process is gone."""

import gc
import json
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest

from paceline import LLM, Request, SamplingParams, Scheduler
from paceline.core.adapter import NO_ADAPTERS, AdapterConfig
from paceline.core.errors import ConfigError, DeviceLost, RequestError, RequestFailed
from paceline.core.sampling import Sampling
from paceline.core.settings.load import LoadConfig
from paceline.engine.settings import CoreSettings
from paceline.engine.transport.process import ProcessCore
from paceline.engine.transport.restart import RestartingCore
from paceline.images.processor import image_input
from paceline.llm import FACTORY
from paceline.runner.models.model import Model
from paceline.runner.parallel.group import RankGroup
from paceline.wiring import assembly
from paceline.wiring.device import ModelLoad, device_named
from paceline.wiring.model import find_checkpoint, find_draft_weights
from paceline.wiring.ranks import ranked_runner as ranked_blocks
from paceline.wiring.ranks.rank_processes import CopyBlocks, RankedModel, RankProcesses
from paceline.wiring.ranks.ranked_runner import RankedRunner, assemble_ranks
from tests.conformance.architectures import Case
from tests.runner.adapters.support import write_adapter
from tests.runner.driving import drive
from tests.runner.eagle3 import head_folder
from tests.wiring.assembled import assembled
from tests.wiring.support import until

OWN = LoadConfig(device="cpu", load_format="dummy", kv_cache_gib=0.01, threads=1)
SETTINGS: dict[str, Any] = {"max_num_seqs": 4, "max_model_len": 64, "block_size": 4}
# Preemption, swapping, chunks, drafts, prefix hits and two steps in flight, all at once.
TIGHT: dict[str, Any] = {
    "max_num_batched_tokens": 8,
    "preemption_mode": "swap",
    "num_speculative_tokens": 2,
    "speculation": "fixed",
}


def shape(folder: Path, architecture: str) -> str:
    """The folder of a small model that two ranks can share."""
    entries = Case(architecture).entries
    decoder = entries.get("text_config", entries)
    decoder["vocab_size"] = 102
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(entries))
    return str(folder)


def asked(sampling: Sampling) -> list[Request]:
    beginning = [5, 9, 2, 7, 1, 1, 3, 6]
    prompts = [[*beginning, 4], [*beginning, 8, 8], [33] * 9]
    return [
        Request(id=f"r{i}", prompt=prompt, max_tokens=10, sampling=sampling, seed=4)
        for i, prompt in enumerate(prompts)
    ]


GREEDY, DRAWN = Sampling(temperature=0.0), Sampling(temperature=0.9, top_p=0.95)


@pytest.fixture(scope="module")
def ranks() -> Iterator[RankProcesses]:
    """One other process, for one model after the other."""
    started = RankProcesses(2)
    yield started
    started.close()
    assert not started.are_lost


def on_ranks(
    ranks: RankProcesses,
    model: str,
    settings: dict[str, Any],
    own: LoadConfig = OWN,
    **more: Any,
) -> tuple[Scheduler, RankedRunner]:
    checkpoint, _ = find_checkpoint(model, LoadConfig(load_format="dummy"), "cpu", lambda *_: None)
    config = replace(own, device="cpu", tensor_parallel_size=2)
    load = ModelLoad(settings, config, checkpoint, **more)
    cpu = device_named("cpu")
    scheduler, loaded = assemble_ranks(cpu, model, load, start=lambda _: ranks)
    return scheduler, loaded.runner


# One of each kind; tests of `divide` compare the logits of all architectures.
KINDS = ["cohere2", "deepseekv2", "gemma3", "gptoss", "llama", "qwen2_5_vl", "qwen2moe"]


@pytest.mark.parametrize("architecture", KINDS)
def test_architectures_on_two_processes(
    ranks: RankProcesses, tmp_path: Path, architecture: str
) -> None:
    model = shape(tmp_path / architecture, architecture)
    checkpoint, _ = find_checkpoint(model, LoadConfig(load_format="dummy"), "cpu", lambda *_: None)
    plainly = drive(*assembled("cpu", SETTINGS, OWN, checkpoint), asked(GREEDY))
    assert drive(*on_ranks(ranks, model, SETTINGS), asked(GREEDY), depth=2) == plainly


@pytest.mark.parametrize("sampling", [GREEDY, DRAWN], ids=["greedy", "drawn"])
def test_every_way_of_scheduling_at_once(
    ranks: RankProcesses, tmp_path: Path, sampling: Sampling
) -> None:
    model = shape(tmp_path / "llama", "llama")
    checkpoint, _ = find_checkpoint(model, LoadConfig(load_format="dummy"), "cpu", lambda *_: None)
    plainly = drive(*assembled("cpu", SETTINGS, OWN, checkpoint), asked(sampling))
    own = replace(OWN, kv_cache_gib=0.0, num_gpu_blocks_override=10, swap_space=0.001)
    settings = SETTINGS | TIGHT | {"max_model_len": 32}
    scheduler, runner = on_ranks(ranks, model, settings, own)
    assert drive(scheduler, runner, asked(sampling), depth=2) == plainly
    stats = scheduler.stats
    assert stats.swapped_in_blocks
    assert stats.prefix_hits
    assert stats.drafted or sampling is DRAWN


@pytest.mark.parametrize(
    ("proposer", "sampling"), [("suffix", GREEDY), ("draft_model", DRAWN), ("eagle3", GREEDY)]
)
def test_rank_0_drafts_for_all(
    ranks: RankProcesses, tmp_path: Path, proposer: str, sampling: Sampling
) -> None:
    """It alone has draft weights. All ranks leave room for KV of a drafter beside their own."""
    model = shape(tmp_path / "llama", "llama")
    checkpoint, _ = find_checkpoint(model, LoadConfig(load_format="dummy"), "cpu", lambda *_: None)
    weights = {
        "suffix": "",
        "draft_model": shape(tmp_path / "smaller", "qwen3"),
        "eagle3": str(head_folder(tmp_path / "head", checkpoint.config)),
    }
    named = {"proposer": proposer, "speculative_model": weights[proposer]}
    own = replace(OWN, kv_cache_gib=0.0, num_gpu_blocks_override=10, swap_space=0.001)
    settings = SETTINGS | TIGHT | {"max_model_len": 32} | named
    draft = find_draft_weights(settings, own, "cpu", lambda *_: None, checkpoint)
    one = assembled("cpu", settings, own, checkpoint, draft=draft)
    due = drive(*one, asked(sampling), depth=2)
    scheduler, runner = on_ranks(ranks, model, settings, own, draft=draft)
    assert drive(scheduler, runner, asked(sampling), depth=2) == due
    assert scheduler.stats.swapped_in_blocks
    assert proposer == "suffix" or scheduler.stats.drafted


def test_rank_0_encodes_images_for_all(ranks: RankProcesses, tmp_path: Path) -> None:
    """Prompts are computed in chunks, positions have rows and columns, and a head drafts."""
    model = shape(tmp_path / "model", "qwen2_5_vl")
    checkpoint, _ = find_checkpoint(model, LoadConfig(load_format="dummy"), "cpu", lambda *_: None)
    images = Model.load(checkpoint).images
    assert images is not None
    side, random = 2 * images.square, np.random.default_rng(3)
    pixels = [random.integers(0, 256, (side, side, 3), np.uint8) for _ in range(2)]
    shown: list[Request] = [
        replace(one, prompt=[9] * 4 + one.prompt.tolist(), images=(image_input(image, 0, 4),))
        for one, image in zip(asked(GREEDY), (*pixels, pixels[0]), strict=True)
    ]
    head = str(head_folder(tmp_path / "head", checkpoint.config))
    named = {"proposer": "eagle3", "speculative_model": head, "encoder_cache_size": 8}
    settings, own = SETTINGS | TIGHT | named, replace(OWN, swap_space=0.001)
    draft = find_draft_weights(settings, own, "cpu", lambda *_: None, checkpoint)
    due = drive(*assembled("cpu", settings, own, checkpoint, draft=draft), shown)
    scheduler, runner = on_ranks(ranks, model, settings, own, draft=draft)
    assert drive(scheduler, runner, shown, depth=2) == due
    assert scheduler.stats.encoded == 2 * 4
    assert scheduler.stats.drafted


def test_ranks_have_the_blocks_of_the_one_with_least_memory(
    ranks: RankProcesses, tmp_path: Path
) -> None:
    """A rank has half of the KV heads, so the same memory holds twice as many positions."""
    model = shape(tmp_path / "llama", "llama")
    checkpoint, _ = find_checkpoint(model, LoadConfig(load_format="dummy"), "cpu", lambda *_: None)
    whole, _ = assembled("cpu", SETTINGS, OWN, checkpoint)
    divided, _ = on_ranks(ranks, model, SETTINGS)
    assert divided.config.cache.num_blocks == 2 * whole.config.cache.num_blocks


def test_every_rank_has_its_part_of_adapters(ranks: RankProcesses, tmp_path: Path) -> None:
    """One takes the place of another on the device, and is dropped and read again."""
    model = shape(tmp_path / "llama", "llama")
    checkpoint, _ = find_checkpoint(model, LoadConfig(load_format="dummy"), "cpu", lambda *_: None)
    folders = {
        name: write_adapter(tmp_path / name, checkpoint.config, seed)
        for seed, name in enumerate("xy", 1)
    }
    wanted = [replace(one, adapter=name) for one, name in zip(asked(GREEDY), "xyx", strict=True)]
    lora, settings = AdapterConfig(enable_lora=True), SETTINGS | {"max_loras": 1}

    def adapted(scheduler: Scheduler, runner: Any, depth: int) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for _ in range(2):
            for name, folder in folders.items():
                runner.host_adapters.keep(name, runner.host_adapters.read(str(folder)))
            found.append(drive(scheduler, runner, wanted, depth))
            for name in folders:
                runner.host_adapters.drop(name)
        return found

    one = assembled("cpu", settings, OWN, checkpoint, adapters=lora)
    scheduler, runner = on_ranks(ranks, model, settings, adapters=lora)
    due = adapted(*one, depth=1)
    assert adapted(scheduler, runner, depth=2) == due
    assert due[0] != drive(*assembled("cpu", SETTINGS, OWN, checkpoint), asked(GREEDY))
    (folders["x"] / "adapter_model.safetensors").write_bytes(b"not tensors")
    with pytest.raises(RequestError, match="cannot be read"):
        runner.host_adapters.read(str(folders["x"]))  # pyright: ignore[reportOptionalMemberAccess]


# -- blocks that come back --------------------------------------------------

PROMPTS = [[token + 3 * number for token in range(20, 60)] for number in range(3)]
ONE_AT_A_TIME: dict[str, Any] = {
    "load_format": "dummy",
    "device": "cpu",
    "threads": 1,
    "num_gpu_blocks_override": 16,
    **SETTINGS,
}


class LentRanks:
    """Ranks that outlive the engine that uses them."""

    def __init__(self, ranks: RankProcesses) -> None:
        self._ranks = ranks

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ranks, name)

    def close(self) -> None: ...


@pytest.fixture
def lent(ranks: RankProcesses, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Let engines with two ranks use those of this module, with these settings."""
    start: Any = lambda _: LentRanks(ranks)
    monkeypatch.setattr(assembly, "assemble_ranks", partial(assemble_ranks, start=start))
    return ONE_AT_A_TIME | {"tensor_parallel_size": 2, "depth": 2}


def returning(model: LLM) -> list[list[int]]:
    """Every prompt twice: the device has room for one, so that the second time it is loaded."""
    params = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
    found: list[list[int]] = []
    for prompt in (*PROMPTS, *PROMPTS):
        (output,) = model.generate([prompt], params, progress=False, raise_on_error=True)
        found.append(list(output.outputs[0].token_ids))
    return found


def loaded(model: LLM) -> float:
    """Tokens that came from the connector."""
    return model.get_metrics().counters["external_prefix_cache_hits"]


@pytest.fixture(scope="module")
def returned(model: Path) -> list[list[int]]:
    with LLM(str(model), **ONE_AT_A_TIME) as llm:
        return returning(llm)


def test_every_rank_loads_its_part_of_a_block(
    model: Path, tmp_path: Path, lent: dict[str, Any], returned: list[list[int]]
) -> None:
    """From host memory, and from files that an earlier engine has written."""
    files = tmp_path / "kv"
    extra = {"kv_connector_extra_config": {"path": str(files)}}
    with LLM(str(model), **lent, kv_connector="host") as llm:
        assert returning(llm) == returned
        assert loaded(llm) == 3 * 36
    for least in (0, 6 * 36):
        with LLM(str(model), **lent, kv_connector="disk", kv_transfer_config=extra) as llm:
            assert returning(llm) == returned
            assert loaded(llm) >= least
            until(lambda: len(list(files.rglob("*"))) > 3 * 9)  # they are written meanwhile


def test_a_load_that_fails_on_one_rank_is_computed_by_all(
    model: Path,
    lent: dict[str, Any],
    returned: list[list[int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def elsewhere(blocks: tuple[int, ...], to_host: bool) -> CopyBlocks:
        return CopyBlocks(blocks if to_host else (10**6,), to_host)

    monkeypatch.setattr(ranked_blocks, "CopyBlocks", elsewhere)
    with LLM(str(model), **lent, kv_connector="host") as llm:
        assert returning(llm) == returned
        assert loaded(llm) == 0


# -- processes that are gone ------------------------------------------------


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def is_gone(pid: int) -> bool:
    """It may be a zombie whose parent has died too."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def children(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_a_killed_rank_is_an_error_of_the_requests_and_of_all_later_ones(model: Path) -> None:
    settings = {"load_format": "dummy", "kv_cache_gib": 0.01, "tensor_parallel_size": 2}
    with LLM(str(model), **settings) as llm:
        (rank,) = llm._engine._runner.ranks.pids  # pyright: ignore[reportAttributeAccessIssue]
        (output,) = llm.generate([[1, 2, 3]], SamplingParams(max_tokens=3), progress=False)
        assert not output.error
        for _ in range(2):
            llm.enqueue([4, 5, 6], max_tokens=200, ignore_eos=True)
        llm.step()
        kill(rank)
        ended = until(llm.step)
        reason = rf"rank 1 of 2 \(process {rank}\) has died with code -9"
        with pytest.raises(RequestFailed, match=reason):
            llm.generate([[7]], progress=False, raise_on_error=True)
    assert all("has died with code -9" in one.error for one in ended)
    assert is_gone(rank)


def test_a_core_whose_rank_is_killed_is_restarted_and_ranks_end_with_their_core(
    model: Path,
) -> None:
    """The rank is killed while no request runs."""
    settings = {"load_format": "dummy", "kv_cache_gib": 0.01, "tensor_parallel_size": 2}
    died: list[str] = []

    class Silent:
        def deliver(self, delivery: Any) -> None: ...

        def died(self, reason: str, for_good: bool) -> None:
            died.append(reason)

        def health_changed(self) -> None: ...

    core = RestartingCore(
        lambda: ProcessCore(FACTORY, str(model), settings), CoreSettings(core_restarts=1)
    )
    try:
        core.ready()
        core.start(Silent())
        first, (rank,) = core.pid, children(core.pid)
        kill(rank)
        assert f"rank 1 of 2 (process {rank}) has died with code -9" in until(lambda: died)[0]
        until(lambda: core.pid != first and core.healthy() is None)
        (rank,) = children(core.pid)
        kill(core.pid)
        until(lambda: is_gone(rank))
    finally:
        core.close()


def test_ranks_that_are_dropped_without_being_closed_end() -> None:
    ranks = RankProcesses(2)
    (pid,), (thread,) = ranks.pids, ranks._threads
    del ranks
    gc.collect()
    thread.join(5)
    assert is_gone(pid)


def test_a_rank_that_is_gone_ends_the_wait_for_a_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ranks, connected = RankProcesses(1), Event()

    def connect(*_: Any) -> None:
        ranks._lose(DeviceLost("rank 1 is gone"))
        connected.wait(5)

    monkeypatch.setattr(RankGroup, "through_file", connect)
    with pytest.raises(DeviceLost, match="rank 1 is gone"):
        ranks.build(RankedModel("a model", {}, OWN, NO_ADAPTERS, "gloo"))
    assert not connected.is_set()
    connected.set()
    ranks.close()


# -- what does not go with ranks --------------------------------------------


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"tensor_parallel_size": 3}, "sizes that fit this model are 1, 2, 4"),
        ({"tensor_parallel_size": 0}, "tensor_parallel_size is 0"),
        ({"kv_connector": "nixl"}, "use 'host', 'disk' or 'valkey'"),
    ],
)
def test_settings_that_several_ranks_do_not_have(
    model: Path, changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        LLM(str(model), **{"load_format": "dummy", "tensor_parallel_size": 2, **changes})


def test_ranks_that_cannot_load_their_part_end(model: Path) -> None:
    """Both find that the memory holds no sequence of this length."""
    before = children(os.getpid())
    with pytest.raises(ConfigError, match="needs 16 blocks"):
        LLM(
            str(model),
            load_format="dummy",
            tensor_parallel_size=2,
            max_model_len=256,
            num_gpu_blocks_override=3,
        )
    assert children(os.getpid()) == before
