"""Scripts of many requests on a GPU, as fast as it goes; prints JSON lines.

    python -m benchmarks.gpu_offline qwen3-0.6b triton script script tight shared
    python -m benchmarks.gpu_offline qwen3-0.6b triton tight watermark=0.05
    python -m benchmarks.gpu_offline llama-3.3-70b:fp8 triton thousand kv_cache_dtype=fp8

The script is nano-vLLM's: one request before the clock starts, then 256, of 100 to 1,024 tokens in
and out. `tight` has 4,140 blocks for them, about 40 % of what they would use. `shared` has 1,024
requests in 64 groups that share 1,024 tokens. `thousand` has 256 requests, or as many as are asked
for, of 1,000 tokens in and out. Weights are random, in the shapes of the named
models: the speed is the same.
"""

import sys
from time import perf_counter
from typing import Any

from benchmarks.gpu import Bench, submit
from benchmarks.gpu_scripts import Script, script, shared, thousand
from paceline.wiring.cuda import CACHE_DTYPES

TIGHT_BLOCKS = 4140


def run(bench: Bench, case: str, **settings: Any) -> None:
    prompts, outs = requests_of(case, settings.pop("requests", 256))
    blocks = {"blocks": TIGHT_BLOCKS} if case == "tight" else {}
    scheduler = bench.scheduler(**blocks, **settings)
    submit(scheduler, prompts, outs, heat=0.6)
    begin = perf_counter()
    times = bench.drive(scheduler)
    wall = perf_counter() - begin
    bench.say(
        case=case,
        settings=settings,
        tokens_in=sum(map(len, prompts)),
        tokens_out=sum(outs),
        seconds=round(wall, 3),
        tokens_per_s=round(sum(outs) / wall),
        roofline=round(times.floor / wall, 3),
        preemptions=scheduler.stats.preemptions,
        **times.told(),
    )


def requests_of(case: str, requests: int) -> Script:
    if case == "thousand":
        return thousand(requests)
    return shared() if case == "shared" else script()


def begin(bench: Bench) -> None:
    """The request before all others."""
    scheduler = bench.scheduler()
    submit(scheduler, [[1, 2, 3]], [64], heat=1.0)
    bench.drive(scheduler)


def value(word: str) -> Any:
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    return word


def main() -> None:
    name, attention, *words = sys.argv[1:]
    settings = dict(word.split("=") for word in words if "=" in word)
    kv_dtype = CACHE_DTYPES[settings.pop("kv_cache_dtype", "bf16")]
    bench = Bench(name, attention, kv_dtype=kv_dtype)
    begin(bench)
    for case in (word for word in words if "=" not in word):
        run(bench, case, **{key: value(given) for key, given in settings.items()})


if __name__ == "__main__":
    main()
