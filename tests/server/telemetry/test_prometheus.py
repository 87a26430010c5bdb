"""The metrics: the field's whole list, and a dashboard that finds what it asks for."""

import asyncio
import re
from pathlib import Path
from typing import Any

from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from paceline.server.settings import ServerSettings
from paceline.server.telemetry.prometheus import METRIC_HELP
from tests.server.support import MODEL, Site, on_its_own_server, paced

GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "metrics.md"
PATH = "/v1/completions"

GAUGES = """num_requests_running num_requests_waiting num_requests_waiting_by_reason
    kv_cache_usage_perc engine_sleep_state lora_requests_info"""
COUNTERS = """num_preemptions prompt_tokens prompt_tokens_by_source prompt_tokens_cached
    generation_tokens request_success prefix_cache_queries prefix_cache_hits
    external_prefix_cache_queries external_prefix_cache_hits mm_cache_queries mm_cache_hits
    corrupted_requests spec_decode_num_drafts spec_decode_num_draft_tokens
    spec_decode_num_accepted_tokens spec_decode_num_accepted_tokens_per_pos"""
HISTOGRAMS = """time_to_first_token_seconds inter_token_latency_seconds
    request_time_per_output_token_seconds e2e_request_latency_seconds request_queue_time_seconds
    request_inference_time_seconds request_prefill_time_seconds request_decode_time_seconds
    request_prompt_tokens request_generation_tokens iteration_tokens_total
    request_max_num_generation_tokens request_params_n request_params_max_tokens
    request_prefill_kv_computed_tokens kv_block_lifetime_seconds
    kv_block_idle_before_evict_seconds kv_block_reuse_gap_seconds"""
# vLLM's, of which there is nothing to tell here, and why.
LEFT_OUT = {
    "lora_requests_info": "only with adapters: see tests/wiring/test_adapter_routes.py",
    "corrupted_requests": "paceline:failed_rows counts those, which end",
    "kv_block_lifetime_seconds": "blocks are not timed",
    "kv_block_idle_before_evict_seconds": "blocks are not timed",
    "kv_block_reuse_gap_seconds": "blocks are not timed",
}


async def families(site: Site) -> dict[str, Metric]:
    text = (await site.http.get("/metrics")).text
    return {family.name: family for family in text_string_to_metric_families(text)}


def test_every_metric_has_a_meaning_there_and_in_the_guide() -> None:
    async def scenario(site: Site) -> None:
        found = await families(site)
        meanings = {name.rpartition(":")[2]: one.documentation for name, one in found.items()}
        own = {name: text for name, text in meanings.items() if not name.startswith("process_")}
        adapters = {"lora_requests_info"}  # only where adapters are served
        assert own == {name: METRIC_HELP[name] for name in METRIC_HELP.keys() - adapters}
        of_processes = meanings.keys() - own.keys()
        assert len(of_processes) == 6
        assert all(f"`{name}" in GUIDE.read_text() for name in of_processes)

    on_its_own_server(scenario)
    told = dict(re.findall(r"^\| `(\w+?)(?:_total)?` \| (.+) \|$", GUIDE.read_text(), re.MULTILINE))
    assert told == {name.removesuffix("_total"): text for name, text in METRIC_HELP.items()}


def test_every_metric_of_the_list_is_there_or_left_out_for_a_reason() -> None:
    async def scenario(site: Site) -> None:
        found = {name.removeprefix("vllm:"): one for name, one in (await families(site)).items()}
        for kind, names in (("gauge", GAUGES), ("counter", COUNTERS), ("histogram", HISTOGRAMS)):
            told = {name for name in names.split() if name in found and found[name].type == kind}
            assert told == set(names.split()) - LEFT_OUT.keys()
        assert not LEFT_OUT.keys() & found.keys()

    on_its_own_server(scenario)


def value(found: dict[str, Metric], sample: str, **labels: str) -> float:
    (one,) = [
        each
        for family in found.values()
        for each in family.samples
        if each.name == sample and labels.items() <= each.labels.items()
    ]
    assert each_has_a_model(found)
    return one.value


def each_has_a_model(found: dict[str, Metric]) -> bool:
    samples = [each for name, one in found.items() if ":" in name for each in one.samples]
    return all(
        (each.labels["model_name"], each.labels["engine"]) == (MODEL, "0") for each in samples
    )


def test_values_are_those_of_what_happened() -> None:
    async def scenario(site: Site) -> None:
        body: dict[str, Any] = {"prompt": [9] * 20, "max_tokens": 5, "ignore_eos": True}
        for _ in range(2):
            await site.post(PATH, **body)
        await site.post(PATH, **body, n=2)
        await site.engine.pause("all")
        late = await site.post(PATH, **body, timeout=0.05)
        assert late.status_code == 504
        await site.engine.resume()
        await site.until(lambda: not site.engine._frontend._leaving)
        now = await families(site)
        assert value(now, "vllm:request_success_total", finished_reason="length") == 4
        assert value(now, "vllm:request_success_total", finished_reason="timeout") == 1
        assert value(now, "vllm:request_success_total", finished_reason="stop") == 0
        assert value(now, "vllm:prompt_tokens_by_source_total", source="local_cache_hit") == 32
        assert value(now, "vllm:prompt_tokens_by_source_total", source="local_compute") == 28
        generated = value(now, "vllm:generation_tokens_total")
        assert generated == 4 * 5
        assert value(now, "vllm:prompt_tokens_total") == 3 * 20
        assert value(now, "vllm:iteration_tokens_total_sum") == 3 * 20 + generated
        assert value(now, "vllm:iteration_tokens_total_count") == 3 * 5
        assert value(now, "paceline:step_tokens_sum") >= 28 + 4 * 4
        assert value(now, "vllm:request_queue_time_seconds_count") == 4
        for stage in ("prefill", "decode", "inference"):
            assert value(now, f"vllm:request_{stage}_time_seconds_count") == 3
        assert value(now, "vllm:cache_config_info", num_gpu_blocks="96", block_size="4") == 1
        assert value(now, "paceline:engine_healthy") == 1
        assert value(now, "paceline:engine_crashes_total") == 0

    on_its_own_server(scenario)


def test_a_request_that_never_ran_has_only_waited() -> None:
    async def scenario(site: Site) -> None:
        await site.engine.pause("all")
        body = {"prompt": [9] * 20, "max_tokens": 5}
        asking = asyncio.create_task(site.post(PATH, **body))
        await site.until(lambda: bool(site.engine._frontend.open))
        asking.cancel()
        await site.until(lambda: site.empty)
        now = await families(site)
        assert value(now, "vllm:request_success_total", finished_reason="abort") == 1
        assert value(now, "vllm:prompt_tokens_by_source_total", source="local_compute") == 0
        assert value(now, "vllm:request_queue_time_seconds_count") == 1
        for name in (
            *("request_prefill_time_seconds", "request_decode_time_seconds"),
            *("request_inference_time_seconds", "request_prefill_kv_computed_tokens"),
        ):
            assert value(now, f"vllm:{name}_count") == 0

    on_its_own_server(scenario)


def test_the_model_has_the_name_that_it_is_served_under() -> None:
    async def scenario(site: Site) -> None:
        site.context.cache_labels = {"cache_dtype": "auto"}
        text = (await site.http.get("/metrics")).text
        assert 'model_name="first"' in text
        assert 'model_name="oracle"' not in text
        found = {family.name: family for family in text_string_to_metric_families(text)}
        (cache,) = found["vllm:cache_config_info"].samples
        assert cache.labels == {
            "model_name": "first",
            "engine": "0",
            "block_size": "4",
            "cache_dtype": "auto",
            "enable_prefix_caching": "True",
            "num_gpu_blocks": "96",
        }

    on_its_own_server(scenario, ServerSettings(aliases=("first", "second")))


def test_requests_that_run_are_counted_and_not_their_sequences() -> None:
    async def scenario(site: Site) -> None:
        stream = {"prompt": "the", "max_tokens": 100, "ignore_eos": True, "n": 3, "stream": True}
        async with site.http.stream("POST", PATH, json=stream) as response:
            lines = response.aiter_lines()
            await anext(lines)
            await site.engine.pause("all")
            now = await families(site)
            await site.engine.resume()
        assert value(now, "vllm:num_requests_running") == 1
        assert value(now, "vllm:num_requests_swapped") == 0
        assert value(now, "vllm:num_requests_waiting_by_reason", reason="capacity") == 0

    on_its_own_server(scenario, breaks=paced, num_blocks=200)
