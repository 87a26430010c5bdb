"""Adapters over HTTP: chosen by `model`, listed, loaded and unloaded."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from paceline import AsyncLLM
from paceline.runner.weights.files import open_checkpoint
from paceline.server.app import create_app
from paceline.server.settings import ServerSettings
from paceline.wiring.model_files import load_tokenizer
from tests.golden.small_model import small_model
from tests.runner.adapters.support import write_adapter

PROMPT = "the quick brown fox"
Test = Callable[[httpx.AsyncClient], Awaitable[None]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def adapters(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder, config = tmp_path_factory.mktemp("adapters"), open_checkpoint(model).config
    return {
        name: str(write_adapter(folder / name, config, seed)) for seed, name in enumerate("xy", 1)
    }


def served(model: Path, adapters: dict[str, str], test: Test, **settings: bool) -> None:
    """Serve adapter x, and let a client test it."""

    async def run() -> None:
        given = {"enable_lora": True, "lora_modules": (f"x={adapters['x']}",), "max_loras": 2}
        async with AsyncLLM(str(model), max_model_len=64, **given) as engine:
            tokenizer = load_tokenizer(str(model), "auto", "")
            app = create_app(engine, "tiny", tokenizer, ServerSettings(**settings))
            await app.state.context.read_adapters()
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
                await test(client)

    asyncio.run(run())


async def text(client: httpx.AsyncClient, name: str) -> str:
    body = {"model": name, "prompt": PROMPT, "max_tokens": 8, "temperature": 0}
    answer = (await client.post("/v1/completions", json=body)).json()
    assert answer.get("model", name) == name
    found: str = answer["choices"][0]["text"] if "choices" in answer else answer["error"]["message"]
    return found


async def chat(client: httpx.AsyncClient, path: str, name: str) -> Any:
    message = [{"role": "user", "content": PROMPT}]
    body = {"model": name, "messages": message, "max_tokens": 8, "temperature": 0}
    answer = (await client.post(path, json=body)).json()
    return answer["choices"][0]["message"]["content"] if "choices" in answer else answer["content"]


def test_the_model_field_chooses_an_adapter(model: Path, adapters: dict[str, str]) -> None:
    async def test(client: httpx.AsyncClient) -> None:
        plain, adapted = await asyncio.gather(text(client, "tiny"), text(client, "x"))
        assert plain != adapted
        metrics = (await client.get("/metrics")).text
        (lora,) = [one for one in metrics.splitlines() if one.startswith("vllm:lora_requests_info")]
        assert 'max_lora="2",model_name="tiny",running_lora_adapters=""' in lora
        listed = (await client.get("/v1/models")).json()["data"]
        assert [(one["id"], one["root"], one["parent"]) for one in listed] == [
            ("tiny", "tiny", None),
            ("x", adapters["x"], "tiny"),
        ]
        for path in ("/v1/chat/completions", "/v1/messages"):
            assert await chat(client, path, "x") != await chat(client, path, "tiny")
        assert "the model 'y' does not exist; use tiny, x" in await text(client, "y")
        asked = await client.post("/v1/load_lora_adapter", json={})
        assert asked.status_code == 404, "no setting allows it"

    served(model, adapters, test)


def test_adapters_come_and_go(model: Path, adapters: dict[str, str]) -> None:
    async def test(client: httpx.AsyncClient) -> None:
        y = {"lora_name": "y", "lora_path": adapters["y"]}
        loaded = await client.post("/v1/load_lora_adapter", json=y)
        assert (loaded.status_code, loaded.text) == (
            200,
            "Success: LoRA adapter 'y' added successfully.",
        )
        first = await text(client, "y")
        again = await client.post("/v1/load_lora_adapter", json=y)
        assert again.status_code == 400
        assert "is loaded already" in again.json()["error"]["message"]
        other = {**y, "lora_path": adapters["x"], "load_inplace": True}
        assert (await client.post("/v1/load_lora_adapter", json=other)).status_code == 200
        assert first != await text(client, "y") == await text(client, "x")
        bad = {"lora_name": "z", "lora_path": "nowhere"}
        refused = await client.post("/v1/load_lora_adapter", json=bad)
        assert "nowhere is no adapter of PEFT" in refused.json()["error"]["message"]
        own = {**y, "lora_name": "tiny"}
        assert (await client.post("/v1/load_lora_adapter", json=own)).status_code == 400
        running = asyncio.create_task(text(client, "y"))
        await asyncio.sleep(0)
        gone = await client.post("/v1/unload_lora_adapter", json={"lora_name": "y"})
        assert gone.status_code == 200
        assert "the model 'y' does not exist" in await text(client, "y")
        assert "error" not in await running
        twice = await client.post("/v1/unload_lora_adapter", json={"lora_name": "y"})
        assert twice.status_code == 404

    served(model, adapters, test, allow_runtime_lora_updating=True)
