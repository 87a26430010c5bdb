"""vLLM's whole engine with our scheduler: the tokens are those of the model."""

import json
import random
from typing import Any

import pytest
from vllm import LLM, SamplingParams
from vllm.v1.executor import uniproc_executor

from paceline.core.errors import ConfigError
from paceline.integrations.vllm import scheduler as plugin
from tests.integrations.vllm.inside.oracle_executor import VOCABULARY, OracleExecutor, answer

OURS = "paceline.integrations.vllm.PacelineScheduler"
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_attention_heads": 1,
    "num_hidden_layers": 1,
    "max_position_embeddings": 256,
    "torch_dtype": "float16",
    "vocab_size": VOCABULARY,
}


@pytest.fixture(autouse=True)
def _oracle(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM schedules asynchronously with executors of its own alone, so ours takes the name."""
    monkeypatch.setattr(uniproc_executor, "UniProcExecutor", OracleExecutor)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("model")
    (folder / "config.json").write_text(json.dumps(MODEL))
    return str(folder)


def make(model: str, **settings: Any) -> LLM:
    usual: dict[str, Any] = {
        "max_model_len": 128,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 48,
        "block_size": 8,
        "num_gpu_blocks_override": 24,
        "enable_prefix_caching": True,
        "async_scheduling": False,
        "scheduler_cls": OURS,
    }
    return LLM(
        model=model,
        skip_tokenizer_init=True,
        distributed_executor_backend="uni",
        disable_log_stats=False,
        **usual | settings,
    )


def prompts(seed: int, number: int) -> list[list[int]]:
    draw = random.Random(seed)
    stems = [[draw.randrange(3, VOCABULARY) for _ in range(24)] for _ in range(2)]
    tails = [
        [draw.randrange(3, VOCABULARY) for _ in range(draw.randint(1, 30))] for _ in range(number)
    ]
    return [draw.choice(stems)[: draw.choice((0, 8, 20, 24))] + tail for tail in tails]


def scheduler(llm: LLM) -> Any:
    return llm.llm_engine.engine_core.engine_core.scheduler


VARIANTS = {
    "fcfs": {},
    "async": {"async_scheduling": True},
    "uncached": {"enable_prefix_caching": False},
    "async-uncached": {"async_scheduling": True, "enable_prefix_caching": False},
    "chunks": {"long_prefill_token_threshold": 7, "max_num_batched_tokens": 16},
    "priority": {"scheduling_policy": "priority"},
    "drafts": {
        "speculative_config": {
            "method": "ngram",
            "num_speculative_tokens": 2,
            "prompt_lookup_max": 2,
        }
    },
} | {
    policy: {"additional_config": {"paceline": {"policy": policy}}, "async_scheduling": True}
    for policy in ("fair", "deadline", "shortest", "longest")
}


def with_drafts(llm: LLM) -> None:
    """Fetch drafts after each step, as vLLM does where its core has a process of its own."""
    core = llm.llm_engine.engine_core.engine_core
    step = core.step_fn

    def step_and_draft() -> Any:
        outputs, executed = step()
        core.post_step(executed)
        return outputs, executed

    core.step_fn = step_and_draft


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_answer_is_the_one_of_the_model(model: str, variant: str) -> None:
    llm = make(model, **VARIANTS[variant])
    with_drafts(llm)
    asked = prompts(1, 40)
    lengths = [4 + 7 * number % 41 for number in range(len(asked))]
    hints = [{"tenant": f"team-{number % 3}"} for number in range(len(asked))]
    params = [
        SamplingParams(max_tokens=length, ignore_eos=True, detokenize=False, extra_args=extra)
        for length, extra in zip(lengths, hints, strict=True)
    ]
    outputs = llm.generate([{"prompt_token_ids": one} for one in asked], params, use_tqdm=False)
    for prompt, length, output in zip(asked, lengths, outputs, strict=True):
        assert output.outputs[0].token_ids == answer(prompt, length)
    ours = scheduler(llm)
    stats = ours._steps.scheduler.stats
    assert stats.finished == len(asked)
    assert stats.preemptions > 0, "the pool is small"
    if variant == "drafts":
        assert 0 < stats.accepted < stats.drafted
        observed = ours.make_stats().spec_decoding_stats
        assert observed is None, "each step reports its own"
    ours._steps.scheduler.check()
    assert ours.get_request_counts() == (0, 0)
    assert ours.make_stats().kv_cache_usage == 0.0


def test_aborts_and_a_reset_of_the_cache_in_the_middle(model: str) -> None:
    """Requests that go on say what they would have said."""
    llm = make(model, async_scheduling=True, num_gpu_blocks_override=64)
    engine, asked = llm.llm_engine, prompts(2, 12)
    for number, prompt in enumerate(asked):
        params = SamplingParams(max_tokens=30, ignore_eos=True, detokenize=False)
        engine.add_request(str(number), {"prompt_token_ids": prompt}, params)
    found: dict[str, list[int]] = {}
    for step in range(500):
        if step in (9, 21):
            assert engine.reset_prefix_cache(reset_running_requests=True)
        if step == 15:
            engine.abort_request(["3", "7"])
        for output in engine.step():
            if output.finished:
                found[output.request_id] = output.outputs[0].token_ids
        if not engine.has_unfinished_requests():
            break
    expected = {str(n): answer(prompt, 30) for n, prompt in enumerate(asked) if n not in (3, 7)}
    assert found == expected
    assert scheduler(llm).get_request_counts() == (0, 0)


def test_stops_are_reported_as_vllm_does(model: str) -> None:
    llm = make(model)
    (prompt,) = prompts(3, 1)
    said = answer(prompt, 40)
    stop = said[12]
    params = SamplingParams(max_tokens=40, stop_token_ids=[stop], ignore_eos=True, detokenize=False)
    (output,) = llm.generate({"prompt_token_ids": prompt}, params, use_tqdm=False)
    end = said.index(stop) + 1
    assert output.outputs[0].token_ids == said[:end]
    assert (output.outputs[0].finish_reason, output.outputs[0].stop_reason) == ("stop", stop)


def test_a_repeated_prompt_is_found_in_the_cache(model: str) -> None:
    llm = make(model)
    asked = {"prompt_token_ids": list(range(3, 37))}
    params = SamplingParams(max_tokens=4, ignore_eos=True, detokenize=False)
    first, again = (llm.generate(asked, params, use_tqdm=False)[0] for _ in range(2))
    assert (first.num_cached_tokens, again.num_cached_tokens) == (0, 32)
    assert again.metrics.num_generation_tokens == 4


def test_a_request_that_can_never_run_ends_with_an_error(model: str) -> None:
    """The engine and its other requests go on."""
    llm = make(model, max_model_len=128, num_gpu_blocks_override=17)
    long = SamplingParams(max_tokens=100, ignore_eos=True, detokenize=False)
    odd = SamplingParams(max_tokens=4, detokenize=False, extra_args={"deadline": "soon"})
    plain = SamplingParams(max_tokens=4, ignore_eos=True, detokenize=False)
    asked = [{"prompt_token_ids": list(range(3, 3 + size))} for size in (20, 9, 9)]
    outputs = llm.generate(asked, [long, odd, plain], use_tqdm=False)
    reasons = [output.outputs[0].finish_reason for output in outputs]
    assert reasons == ["length", "error", "length"]
    assert outputs[2].outputs[0].token_ids == answer(asked[2]["prompt_token_ids"], 4)


def test_the_life_of_a_request_is_explained(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[str] = []
    monkeypatch.setattr(plugin.logger, "info", lambda text, *args: logged.append(text % args))
    llm = make(model, additional_config={"paceline": {"policy": "fair", "explain_over_s": 1e-9}})
    params = SamplingParams(
        max_tokens=4, ignore_eos=True, extra_args={"tenant": "team-7"}, detokenize=False
    )
    (output,) = llm.generate({"prompt_token_ids": [5, 6, 7]}, params, use_tqdm=False)
    told = scheduler(llm).explain(output.request_id)
    assert "3 tokens of prompt, at most 4 new" in told
    assert "first token" in told
    assert logged[-1] == told


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"additional_config": {"paceline": {"policy": "nearest"}}}, "no policy 'nearest'"),
        ({"additional_config": {"paceline": {"max_num_seqs": 3}}}, "vLLM has a flag for it"),
        ({"enable_prompt_embeds": True}, "prompt_embeds"),
        ({"kv_cache_metrics": True}, "kv_cache_metrics"),
        (
            {"kv_transfer_config": {"kv_connector": "ExampleConnector", "kv_role": "kv_both"}},
            "kv_transfer_config",
        ),
    ],
)
def test_what_is_missing_is_refused_when_the_engine_starts(
    model: str, settings: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        make(model, **settings)
