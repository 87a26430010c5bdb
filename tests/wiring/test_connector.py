"""A real model with a connector: the same tokens as without, after the device has evicted them."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from paceline import LLM, AsyncLLM, SamplingParams
from paceline.core.errors import ConfigError
from paceline.server.app import create_app
from paceline.server.settings import ServerSettings
from paceline.wiring.model_files import load_tokenizer
from paceline.wiring.vllm.configs import connector_config
from tests.engine.trace.timeline import Timeline
from tests.wiring.support import dummy_model

GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
SMALL: dict[str, Any] = {
    "load_format": "dummy",
    "device": "cpu",
    "block_size": 8,
    "max_model_len": 128,
    "max_num_seqs": 2,
    "num_gpu_blocks_override": 16,  # one prompt fills most of it
    "threads": 1,
}
PROMPTS = [[token + 3 * number for token in range(20, 110)] for number in range(4)]


def llm(folder: Path, **settings: Any) -> LLM:
    return LLM(str(dummy_model(folder)), **SMALL | settings)


def answers(model: LLM) -> list[list[int]]:
    """Every prompt twice: the device has room for one, so that the second time it is loaded."""
    found: list[list[int]] = []
    for prompt in (*PROMPTS, *PROMPTS):
        (output,) = model.generate({"prompt_token_ids": prompt}, GREEDY, use_tqdm=False)
        found.append(list(output.outputs[0].token_ids))
    return found


def loaded(model: LLM) -> float:
    """Tokens that came from the connector."""
    return model.get_metrics().counters["external_prefix_cache_hits"]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[list[int]]:
    with llm(tmp_path_factory.mktemp("model")) as model:
        return answers(model)


def test_prompts_come_back_from_host_memory(tmp_path: Path, expected: list[list[int]]) -> None:
    trace = tmp_path / "trace.json"
    with llm(tmp_path, kv_connector="host", trace=str(trace)) as model:
        assert answers(model) == expected
        assert loaded(model) >= 3 * 80
    transfers = [begin for ((begin, _),) in Timeline(trace).spans("transfer").values()]
    assert {one["name"] for one in transfers} == {"load", "store"}
    block_bytes = 8 * 2 * 2 * 2 * 8 * 4  # positions, layers, keys and values, heads, numbers, bytes
    assert all(one["args"]["bytes"] == one["args"]["blocks"] * block_bytes for one in transfers)


def test_prompts_come_back_from_disk_after_a_restart(
    tmp_path: Path, expected: list[list[int]]
) -> None:
    path = str(tmp_path / "kv")
    config = {"kv_connector": "disk", "kv_connector_extra_config": {"path": path}}
    for least in (3 * 80, 7 * 80):
        with llm(tmp_path, kv_transfer_config=config) as model:
            assert answers(model) == expected
            assert loaded(model) >= least


def test_settings_of_connectors_are_read_as_vllm_names_them() -> None:
    config = connector_config(
        "disk", '{"kv_role": "kv_producer", "kv_connector_extra_config": {"path": "x"}}'
    )
    assert config.kv_connector == "disk"
    assert config.kv_role == "kv_producer"
    assert dict(config.kv_connector_extra_config) == {"path": "x"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kv_transfer_config": {"kv_conector": "host"}}, "did you mean 'kv_connector'?"),
        ({"kv_transfer_config": "host"}, "kv_transfer_config is 'host', which is not JSON"),
        (
            {"kv_connector": "disk", "kv_transfer_config": {"kv_connector": "host"}},
            "kv_connector is 'disk', and 'host' in kv_transfer_config",
        ),
        ({"kv_transfer_config": {"kv_role": "kv_both"}}, "names no kv_connector"),
        ({"kv_connector": "cellar"}, "no kv_connector 'cellar'"),
        (
            {"kv_connector": "host", "enable_prefix_caching": False},
            "kv_connector needs enable_prefix_caching",
        ),
    ],
)
def test_wrong_settings_are_named(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("?", r"\?")):
        llm(tmp_path, **settings)


def test_a_wrong_connector_is_named_before_a_model_is_looked_for(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no kv_connector 'cellar'"):
        llm(tmp_path, load_format="auto", kv_connector="cellar")  # there are no weights


def test_a_server_loads_from_disk_what_it_stored_before_a_restart(
    tmp_path: Path, expected: list[list[int]]
) -> None:
    model, extra = str(dummy_model(tmp_path)), {"path": str(tmp_path / "kv")}
    config = {"kv_connector": "disk", "kv_connector_extra_config": extra}

    async def served() -> float:
        """Serve all prompts with a new engine. Returns how many tokens were loaded."""
        async with AsyncLLM(model, **SMALL, kv_transfer_config=config) as engine:
            tokenizer = load_tokenizer(model, "dummy", "")
            app = create_app(engine, "tiny", tokenizer, ServerSettings())
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
                for prompt, tokens in zip(PROMPTS, expected, strict=False):
                    body = {"prompt": prompt, "max_tokens": 6, "temperature": 0}
                    more = {"ignore_eos": True, "return_token_ids": True, "model": "tiny"}
                    answer = await client.post("/v1/completions", json=body | more)
                    assert answer.json()["choices"][0]["token_ids"] == tokens
                text = (await client.get("/metrics")).text
        (line,) = [
            one
            for one in text.splitlines()
            if one.startswith("vllm:external_prefix_cache_hits_total")
        ]
        return float(line.split()[-1])

    assert asyncio.run(served()) == 0
    assert asyncio.run(served()) >= 3 * 80
