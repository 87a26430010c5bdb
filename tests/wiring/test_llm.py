"""A model in a script needs no server, and nothing that only a server needs."""

import asyncio
import json
import subprocess
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from paceline import LLM, AsyncLLM, EngineFailed
from paceline.engine.embeddings import PoolingOutput
from tests.runner.support import TINY
from tests.terminal import Terminal

REFUSING = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("fastapi", "uvicorn", "pydantic", "prometheus_client", "zmq"):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Refuse())
from paceline import LLM, AsyncLLM, SamplingParams
"""


def test_a_script_imports_a_model_without_what_a_server_needs() -> None:
    done = subprocess.run(
        [sys.executable, "-c", REFUSING], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("stream", [Terminal, StringIO])
def test_a_terminal_shows_what_the_start_waits_for(
    stream: type[StringIO], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys, "stderr", stream())
    LLM(str(tmp_path), load_format="dummy", device="cpu", kv_cache_gib=0.001).close()
    assert isinstance(sys.stderr, stream)
    assert ("loading weights" in sys.stderr.getvalue()) == (stream is Terminal)


def without_ids(outputs: list[PoolingOutput[Any]]) -> list[tuple[Any, ...]]:
    return [(one.result, one.prompt_token_ids, one.usage, one.error) for one in outputs]


def test_embeddings_and_scores_on_an_event_loop_are_those_of_a_script(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    settings: dict[str, Any] = {"load_format": "dummy", "device": "cpu", "pooling": "last"}
    settings |= {"kv_cache_gib": 0.001, "max_num_seqs": 2, "max_num_queued_reqs": 5}
    texts = [*(f"5 {number}" for number in range(9)), "7 " * 999, "8 9 10"]
    with LLM(str(tmp_path), **settings) as llm:
        vectors = without_ids(llm.embed(texts, progress=False))
        scores = without_ids(llm.score(texts[:3], texts[3:6], progress=False))
    assert [bool(error) for *_, error in vectors] == [len(text) > 999 for text in texts]

    async def scenario() -> None:
        async with AsyncLLM(str(tmp_path), **settings) as engine:
            embedded, compared = await asyncio.gather(
                engine.embed(texts), engine.generate("7", ignore_eos=True, max_tokens=4).whole()
            )
            assert compared.usage.completion_tokens == 4
            assert without_ids(embedded) == vectors
            assert without_ids(await engine.score(texts[:3], texts[3:6])) == scores
            (short,) = await engine.embed(texts[0], dimensions=3, normalize=False)
            assert len(short.outputs.embedding) == 3
            leaving = asyncio.create_task(engine.embed(texts))
            await asyncio.sleep(0)
            leaving.cancel()
            await engine.drain()  # its requests were aborted
        with pytest.raises(EngineFailed):
            await engine.embed(texts)

    asyncio.run(scenario())
