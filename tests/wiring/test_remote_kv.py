"""A real model whose KV goes to another engine: through a server, and by a read of its memory."""

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import redis

from paceline import LLM, SamplingParams
from paceline.engine.api import GenerationRequest, RequestOutput
from tests.kv.resp_servers import resp_server, socket_folder
from tests.wiring.support import dummy_model, until

PROMPT = [3 + place * 7 % 90 for place in range(70)]
FULL = 64  # tokens in full blocks
GREEDY = SamplingParams(max_tokens=6, temperature=0, ignore_eos=True)


def engine(folder: Path, **settings: Any) -> LLM:
    plain: dict[str, Any] = {"load_format": "dummy", "device": "cpu", "kv_cache_gib": 0.01}
    return LLM(str(folder), **plain, **settings)


def generated(llm: LLM, prompt: list[int] = PROMPT, **more: Any) -> RequestOutput:
    asked = GenerationRequest(prompt_token_ids=prompt, params=GREEDY, **more)
    (output,) = llm.generate([asked])
    return output


def tokens_of(output: RequestOutput) -> tuple[int, ...]:
    return output.outputs[0].token_ids


def test_an_engine_finds_in_a_server_what_another_computed(tmp_path: Path) -> None:
    folder = dummy_model(tmp_path)
    with socket_folder() as short, resp_server(short) as url:
        extra = {"kv_connector_extra_config": {"url": url}}
        settings = {"kv_connector": "valkey", "kv_transfer_config": extra}
        with engine(folder, **settings) as one:
            computed = generated(one)
            with redis.Redis.from_url(url) as client:
                until(lambda: client.dbsize() >= FULL // 16)
        with engine(folder, **settings) as other:
            loaded = generated(other)
    assert tokens_of(loaded) == tokens_of(computed)
    assert (computed.usage.cached_tokens, loaded.usage.cached_tokens) == (0, FULL)


def test_wrong_content_in_a_server_is_computed_again(tmp_path: Path) -> None:
    """Two values are exchanged, and one has random bytes: the text is that of the model."""
    folder = dummy_model(tmp_path)
    with socket_folder() as short, resp_server(short) as url:
        extra = {"kv_connector_extra_config": {"url": url}}
        settings = {"kv_connector": "valkey", "kv_transfer_config": extra}
        with engine(folder, **settings) as one, redis.Redis.from_url(url) as client:
            computed = generated(one)
            until(lambda: client.dbsize() >= FULL // 16)
            names = client.keys()
            values = client.mget(names)
            for name, value in zip(names, (*values[1:], values[0]), strict=True):
                client.set(name, value)
            client.set(names[0], os.urandom(len(values[0])))
        with engine(folder, **settings) as other, redis.Redis.from_url(url) as client:
            again = generated(other)
            assert tokens_of(again) == tokens_of(computed)
            assert (again.error, again.usage.cached_tokens) == ("", 0)
            # Until it is written again, a name that was forgotten has no value.
            until(lambda: Counter(client.mget(names)) == Counter(values))


def test_a_decode_engine_reads_what_a_prefill_engine_computed(tmp_path: Path) -> None:
    pytest.importorskip("nixl_cu12")
    os.environ.setdefault("UCX_NET_DEVICES", "lo")
    folder = dummy_model(tmp_path)
    with engine(folder, role="prefill") as prefill, engine(folder, role="decode") as decode:
        expected = generated(decode, cache_salt="alone")
        asked = {"do_remote_decode": True}
        kept = generated(prefill, kv_transfer_params=asked).kv_transfer_params
        assert kept is not None
        read = generated(decode, kv_transfer_params=dict(kept))
        assert tokens_of(read) == tokens_of(expected)
        assert read.usage.cached_tokens == FULL
        again = generated(decode, kv_transfer_params=dict(kept))  # it has all blocks
        assert tokens_of(again) == tokens_of(expected)
        refused = generated(decode, kv_transfer_params=asked)
        assert "the role of this one is decode" in refused.error
