"""Other weights, sleep and wake-up of a real model: as a fresh engine with the new weights."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from paceline import LLM, AsyncLLM, SamplingParams
from paceline.core.errors import RequestError
from paceline.engine.api import EngineUnavailable
from paceline.runner.weights.safetensors import SINGLE
from tests.wiring.support import DESCRIBED, real_model

SMALL: dict[str, Any] = {"device": "cpu", "kv_cache_gib": 0.01, "block_size": 16}
GREEDY = SamplingParams(max_tokens=12, temperature=0.0, logprobs=2, ignore_eos=True)
SHARED = [one % 97 for one in range(70)]
PROMPTS = [{"prompt_token_ids": [*SHARED, tail]} for tail in range(3)]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return [real_model(tmp_path_factory.mktemp("models") / str(seed), seed) for seed in range(3)]


def said(llm: LLM) -> list[Any]:
    outputs = llm.generate(PROMPTS, GREEDY, progress=False, raise_on_error=True)
    return [(one.outputs[0].token_ids, one.outputs[0].logprobs) for one in outputs]


@pytest.mark.parametrize("weights", ["float32", "int8"])
def test_a_loop_of_generate_and_update(weights: str, folders: list[Path], tmp_path: Path) -> None:
    """Prefixes are cached on the device and on a disk, where content of all weights stays."""
    on_disk = {"kv_connector_extra_config": {"path": str(tmp_path / "kv")}}
    settings = {**SMALL, "weights": weights}
    config = {"kv_connector": "disk", "kv_role": "kv_both", **on_disk}
    due: list[Any] = []
    for folder in folders:
        with LLM(str(folder), **settings) as fresh:
            due.append(said(fresh))
    assert due[0] != due[1] != due[2] != due[0]
    with LLM(str(folders[0]), **settings, kv_transfer_config=config) as llm:
        first = llm.weight_version
        assert said(llm) == due[0]
        versions = {first}
        for turn in (1, 2, 1, 0):
            versions.add(llm.update_weights(folders[turn] / SINGLE if turn == 2 else folders[turn]))
            assert said(llm) == due[turn]
            hits = llm.get_metrics().counters["prefix_cache_hits"]
            assert said(llm) == due[turn]
            assert llm.get_metrics().counters["prefix_cache_hits"] - hits == 3 * 64
        assert len(versions) == 4  # the files of the start have their times in theirs
        assert llm.update_weights(load_file(folders[2] / SINGLE), version="step 7") == "step 7"
        assert (llm.weight_version, said(llm)) == ("step 7", due[2])
        llm.update_weights()
        assert said(llm) == due[0]


def test_weights_that_do_not_fit_leave_those_in_use(folders: list[Path], tmp_path: Path) -> None:
    tensors = load_file(folders[1] / SINGLE)
    short = {name: one for name, one in tensors.items() if "layers.1.mlp" not in name}
    wide = {**tensors, "model.norm.weight": tensors["model.norm.weight"][:8].clone()}
    whole = {**tensors, "model.norm.weight": tensors["model.norm.weight"].int()}
    cut = tmp_path / "cut.safetensors"
    cut.write_bytes((folders[1] / SINGLE).read_bytes()[:-100])
    other = real_model(tmp_path / "other", 1, num_hidden_layers=3)
    quantized = tmp_path / "quantized"
    quantized.mkdir()
    save_file(tensors, quantized / SINGLE)
    method = {"quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic"}}
    (quantized / "config.json").write_text(json.dumps(DESCRIBED | method))
    with LLM(str(folders[0]), **SMALL) as llm:
        due, version = said(llm), llm.weight_version
        for weights, message in (
            (short, r"missing: model\.layers\.1\.mlp"),
            (wide, r"wrong shape: model\.norm\.weight \[8\] instead of \[32\]"),
            (whole, "type I32, which is not supported"),
            (cut, "cannot be read"),
            (other, "describes another model: layers 3"),
            (quantized, "has type F32, which is not supported"),
            (tmp_path / "nowhere", "nowhere"),
        ):
            with pytest.raises(RequestError, match=f"the weights stay as they are: .*{message}"):
                llm.update_weights(weights)
        assert (said(llm), llm.weight_version) == (due, version)


def test_an_update_between_sleep_and_wake_up(folders: list[Path]) -> None:
    """The order of those who train and generate on one device."""
    with LLM(str(folders[1]), **SMALL) as fresh:
        due = said(fresh)
    with LLM(str(folders[0]), **SMALL) as llm:
        said(llm)
        for level in (1, 2):
            llm.sleep(level)
            llm.wake_up(tags=["weights"])
            llm.update_weights(folders[1])
            with pytest.raises(EngineUnavailable, match=r"asleep \(kv_cache\)"):
                said(llm)
            llm.wake_up(tags=["kv_cache"])
            assert not llm.is_sleeping
            assert said(llm) == due


def test_requests_run_while_weights_are_updated(folders: list[Path]) -> None:
    asyncio.run(updated(*map(str, folders[:2])))


async def updated(first: str, second: str) -> None:
    async with AsyncLLM(first, **SMALL) as engine:
        stream = engine.generate(PROMPTS[0], GREEDY)
        before = await engine.generate(PROMPTS[0], GREEDY).whole()
        assert await engine.update_weights(second, version="new", mode="wait") == "new"
        assert (await stream.whole()).outputs[0].token_ids == before.outputs[0].token_ids
        await engine.sleep(arrivals="wait")
        assert await engine.is_sleeping()
        waiting = engine.generate(PROMPTS[0], GREEDY)
        await engine.wake_up()
        after = await waiting.whole()
        assert after.outputs[0].token_ids != before.outputs[0].token_ids


def test_adapters_keep_the_weights(folders: list[Path]) -> None:
    with (
        LLM(str(folders[0]), **SMALL, enable_lora=True) as llm,
        pytest.raises(RequestError, match="cannot be changed"),
    ):
        llm.update_weights(folders[1])
