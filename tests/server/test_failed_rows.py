"""One request that the model has no numbers for, and its neighbours, over HTTP."""

import asyncio
import logging
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
from openai import InternalServerError
from safetensors.torch import load_file, save_file

from paceline.engine.api import SamplingParams
from tests.engine.support import expected, expected_text
from tests.server.real import running
from tests.server.support import MODEL, Site, on_its_own_server

PATH = "/v1/completions"
WEIGHTS = "model.safetensors"
POISON = 9  # a token


@pytest.mark.parametrize("depth", [1, 2])
def test_a_request_without_numbers_fails_alone(
    depth: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "paceline.requests")

    async def scenario(site: Site) -> None:
        generations = [
            site.openai.completions.create(
                model=MODEL, prompt="the quick", max_tokens=20, seed=1, extra_headers=headers
            )
            for headers in ({"X-Request-Id": "spoiled"}, {"X-Request-Id": "good"})
        ]
        bad, good = await asyncio.gather(*generations, return_exceptions=True)
        assert isinstance(bad, InternalServerError)
        assert bad.code == "engine_failed"
        assert "has no numbers" in bad.message
        assert not isinstance(good, BaseException)
        params = SamplingParams(max_tokens=20, seed=1)
        assert good.choices[0].text == expected_text(*expected("the quick", params))
        (event,) = (
            (
                await site.http.post(
                    PATH,
                    json={"prompt": "hello", "stream": True},
                    headers={"X-Request-Id": "spoiled-2"},
                )
            )
            .json()
            .values()
        )
        assert event["type"] == "server_error"
        health = await site.http.get("/health")
        assert health.status_code == 200
        assert health.json()["last_failure_s"] >= 0
        assert health.json().keys() == {"status", "last_failure_s"}, "anybody may read it"
        figures = (await site.http.get("/metrics")).text
        assert re.search(r"paceline:failed_rows_total{.*} 2.0", figures)
        assert re.search(r'vllm:request_success_total{.*"error".*} 2.0', figures)

    on_its_own_server(scenario, depth=depth)
    said = [record.getMessage() for record in caplog.records]
    assert sum(": failed (the row of 'spoiled" in one for one in said) == 2


def test_a_real_model_without_numbers_for_one_token(folder: Path, tmp_path: Path) -> None:
    copy = copytree(folder, tmp_path / "poisoned")
    tensors = load_file(copy / WEIGHTS)
    tensors["model.embed_tokens.weight"][POISON] = float("nan")
    save_file(tensors, copy / WEIGHTS, metadata={"format": "pt"})
    good: dict[str, Any] = {"prompt": [20, 21, 22, 23], "max_tokens": 8, "temperature": 0}
    good["logit_bias"] = {POISON: -100}
    with running(copy, depth=2) as server:
        server.until("/health", 200)
        alone = server.http.post(PATH, json=good).json()["choices"][0]["text"]

        def ask(prompt: list[int]) -> Any:
            return server.http.post(PATH, json={**good, "prompt": prompt})

        with ThreadPoolExecutor() as pool:
            prompts = [good["prompt"], [20, 21, POISON, 23]] * 3
            answers = list(pool.map(ask, prompts))
        for fine, failed in zip(answers[::2], answers[1::2], strict=True):
            assert fine.json()["choices"][0]["text"] == alone
            assert failed.status_code == 500
            assert "are not finite" in failed.json()["error"]["message"]
        assert server.http.get("/health").status_code == 200
