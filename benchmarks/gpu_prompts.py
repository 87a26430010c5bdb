"""How fast a GPU computes long prompts: attention alone, and whole prompts through `LLM`.

    python -m benchmarks.gpu_prompts attention            TFLOP/s of the kernel for prompts
    python -m benchmarks.gpu_prompts whole qwen3-0.6b     tokens/s of 8,192 to 32,000 tokens
    python -m benchmarks.gpu_prompts whole qwen3-14b --profile       and the kernels of 4 x 32,000
    python -m benchmarks.gpu_prompts whole qwen3-14b --engine vllm   the same through vLLM
    python -m benchmarks.gpu_prompts beside qwen3-14b --every 5 --serve-flags="--policy slo"

Weights are random, in the shapes of the named models, and no two prompts share a block. `attention`
is causal, over whole prompts and over the last 8,192 tokens of one, in blocks of 16 at random
places. `beside` serves 64 chats, at first undisturbed, then with a prompt of 32,000 tokens every
so many seconds: what the chats notice, and how much later the first tokens of the long ones come
than alone. Prints JSON lines.
"""

import argparse
import json
import shlex
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from random import Random
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter, sleep
from typing import Any

import torch

from benchmarks import gpu_scripts
from benchmarks.gpu_served import model_folder
from benchmarks.raw_client import Load, RawRequest, load
from benchmarks.servers import started
from paceline.runner.attention_backend import Queries
from paceline.runner.batch import Batch
from paceline.runner.cuda.kernels.attention.prefill_attention import PrefillAttention
from paceline.runner.kv_store import KVStore
from paceline.runner.models.config import ModelConfig

CASES = {"1 x 8,192": (1, 8192), "16 x 8,192": (16, 8192), "4 x 32,000": (4, 32_000)}
PROFILED = "4 x 32,000"
HEADS = {"qwen3-0.6b": (16, 8), "qwen3-14b": (40, 8)}
CHUNKS = [(8192, 8192), (16_384, 16_384), (32_000, 32_000), (8192, 32_000)]  # size and end
LAYERS, BLOCK, DIM = 3, 16, 128
MAX_MODEL_LEN = 32_768
LONG = 32_000  # tokens of a prompt beside chats
CHATS, TURNS, ANSWER = 64, 3, 400  # clients, requests of each, and tokens of an answer


def attention() -> None:
    """Time the kernel for prompts, alone."""
    for model, (heads, kv_heads) in HEADS.items():
        found = {f"{size} of {end}": tflops(heads, kv_heads, size, end) for size, end in CHUNKS}
        say(case="attention", model=model, heads=heads, kv_heads=kv_heads, tflops=found)


def tflops(heads: int, kv_heads: int, size: int, end: int) -> int:
    blocks = -(-end // BLOCK)
    shape = {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": DIM}
    raw = {"architectures": ["Qwen3ForCausalLM"], "hidden_size": 64, "intermediate_size": 64}
    raw |= {"num_hidden_layers": LAYERS, "vocab_size": 64, "max_position_embeddings": end}
    config = ModelConfig.of_hf(raw | shape)
    kv = KVStore(config, blocks + 1, BLOCK, torch.bfloat16, "cuda")
    kv.content.normal_()
    on: dict[str, Any] = {"dtype": torch.int32, "device": "cuda"}
    table = torch.randperm(blocks, device="cuda").int().view(1, 1, blocks)
    context = torch.tensor([end], **on)
    nothing, starts = torch.zeros(size, **on), torch.tensor([0, size], **on)
    batch = Batch(nothing, nothing, starts, context, table, nothing, starts[1:] - 1)
    bounds = torch.tensor([0, 1], **on)
    queries = Queries(heads, torch.bfloat16)
    assert PrefillAttention.can(kv, queries, size), "the kernel does not support this GPU"
    kernel = PrefillAttention(batch, kv, bounds, 1, heads)
    kernel.lay_out()
    query = torch.randn(size, heads, DIM, device="cuda").bfloat16()
    out = torch.empty_like(query)

    def attend() -> None:
        for layer in range(LAYERS):
            kernel.attend_into(out, query, layer, None, DIM**-0.5, None, None)

    operations = 4 * heads * DIM * size * (end - (size - 1) / 2)
    return round(LAYERS * operations / gpu_seconds(attend) / 1e12)


def gpu_seconds(run: Callable[[], None], times: int = 9) -> float:
    """The median time of a run on the GPU's own clock."""
    run()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(times + 1)]
    marks[0].record()
    for mark in marks[1:]:
        run()
        mark.record()
    torch.cuda.synchronize()
    return median(a.elapsed_time(b) for a, b in pairwise(marks)) / 1e3


def whole(model: str, options: argparse.Namespace) -> None:
    """Time prompts from `generate` to their first tokens."""
    engine = options.engine
    package, draw = import_module(engine), Random(0)
    params = package.SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)
    with TemporaryDirectory() as parent:
        folder = str(model_folder(Path(parent), model))
        settings = {"load_format": "dummy", "max_model_len": MAX_MODEL_LEN} | options.settings
        begin = perf_counter()
        llm = package.LLM(folder, **settings)
        start_s = round(perf_counter() - begin, 1)

        def run(count: int, length: int) -> float:
            asked = [{"prompt_token_ids": gpu_scripts.drawn(draw, length)} for _ in range(count)]
            begin = perf_counter()
            llm.generate(asked, params, use_tqdm=False)
            return perf_counter() - begin

        for name, (count, length) in CASES.items():
            taken = [run(count, length) for _ in range(options.repeat)]
            rates = [round(count * length / one) for one in taken]
            about = {"case": name, "model": model, "engine": engine, "start_s": start_s}
            say(**about, seconds=[round(one, 4) for one in taken], tokens_per_s=rates)
        if options.profile:
            profile(lambda: run(*CASES[PROFILED]))


def profile(run: Callable[[], Any], most: int = 16) -> None:
    """Print the kernels of a run, by the time that they take."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
        run()
    events = [one for one in found.key_averages() if one.self_device_time_total]
    total = sum(one.self_device_time_total for one in events)
    print(f"{PROFILED}: {total / 1e3:.1f} ms of kernels")
    for one in sorted(events, key=lambda event: -event.self_device_time_total)[:most]:
        taken = one.self_device_time_total
        print(f"{taken / 1e3:9.2f} ms {taken / total:6.1%} {one.count:6d} x  {one.key[:90]}")


def beside(model: str, options: argparse.Namespace) -> None:
    """Serve chats alone, long prompts alone, and both."""
    draw = Random(0)

    def asked(length: int, tokens: int) -> RawRequest:
        return RawRequest.completion(gpu_scripts.drawn(draw, length), tokens, temperature=0.6)

    def chats() -> list[list[RawRequest]]:
        each = lambda: [asked(draw.randint(100, 800), ANSWER) for _ in range(TURNS)]
        return [each() for _ in range(CHATS)]

    with TemporaryDirectory() as parent:
        folder = str(model_folder(Path(parent), model))
        command = [sys.executable, "-m", "paceline", "serve", folder, "--load-format", "dummy"]
        command += ["--max-model-len", str(MAX_MODEL_LEN), *shlex.split(options.serve_flags)]
        with started(command) as (_, port), ThreadPoolExecutor() as pool:
            send = lambda one: load(port, [[one]], 1)
            alone = [send(asked(LONG, 1)) for _ in range(options.repeat)]
            script, again = chats(), chats()
            quiet = load(port, script, 4).figures()
            long = [asked(LONG, 1) for _ in range(100)]
            loud: Future[Load] = pool.submit(load, port, again, 4)
            sent: list[Future[Load]] = []
            while not loud.done():
                sent.append(pool.submit(send, long[len(sent)]))
                sleep(options.every)
            disturbed = loud.result().figures()
            long_ms = [one.result().figures()["ttft_p50_ms"] for one in sent]
    names = ("itl_p50_ms", "itl_p99_ms", "ttft_p50_ms", "ttft_p99_ms", "tokens_per_s")
    alone_ms = median(one.figures()["ttft_p50_ms"] for one in alone)
    say(
        case=f"{CHATS} chats beside a prompt of {LONG} tokens every {options.every} s",
        model=model,
        serve_flags=options.serve_flags,
        quiet={name: quiet[name] for name in names},
        disturbed={name: disturbed[name] for name in names},
        itl_p99_times=round(disturbed["itl_p99_ms"] / quiet["itl_p99_ms"], 2),
        long_alone_ms=alone_ms,
        long_ms=long_ms,
        long_times=round(median(long_ms) / alone_ms, 2),
    )


def say(**figures: Any) -> None:
    print(json.dumps(figures), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure long prompts; prints JSON lines.")
    parser.add_argument("what", choices=("attention", "whole", "beside"))
    parser.add_argument("model", nargs="?", default="qwen3-0.6b", help="a shape, or a folder")
    parser.add_argument("--engine", default="paceline", choices=("paceline", "vllm"))
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--settings", type=json.loads, default={}, help="of LLM, as JSON")
    parser.add_argument("--every", type=float, default=5.0, help="seconds between long prompts")
    parser.add_argument("--serve-flags", default="", help="of `paceline serve`")
    options = parser.parse_args()
    if options.what == "attention":
        attention()
    else:
        {"whole": whole, "beside": beside}[options.what](options.model, options)


if __name__ == "__main__":
    main()
