"""What `batch_invariant` costs on a GPU, and whether it holds there; prints JSON lines.

    python -m benchmarks.gpu_invariant qwen3-0.6b
    python -m benchmarks.gpu_invariant qwen3-14b --cases script --settings '{"quantization": "fp8"}'

Both modes run the script of 256 requests in turn, with random weights (`script`). Then some of them
run alone, with log-probabilities, and again beside all others (`alone`): `different` counts tokens
of which they have other bits.
"""

import argparse
import gc
import json
from time import perf_counter
from typing import Any

import torch

from benchmarks import gpu_scripts
from benchmarks.gpu import commit
from paceline import LLM, SamplingParams

CASES = ("script", "alone")
ALONE = 8  # requests that run alone too
FIXED: dict[str, Any] = {"temperature": 0.6, "ignore_eos": True}


def speed(llm: LLM, seed: int) -> dict[str, Any]:
    """Of the script, after a warm-up by another one."""
    prompts, outs = gpu_scripts.script(seed)
    params = [SamplingParams(max_tokens=out, seed=seed, **FIXED) for out in outs]
    begin = perf_counter()
    llm.generate(asked(prompts), params, progress=False)
    taken = perf_counter() - begin
    return {
        "tokens": sum(outs),
        "seconds": round(taken, 3),
        "tokens_per_s": round(sum(outs) / taken),
    }


def asked(prompts: list[list[int]]) -> list[Any]:
    return [{"prompt_token_ids": ids} for ids in prompts]


def scored(llm: LLM, prompts: list[list[int]], outs: list[int]) -> list[list[tuple[int, float]]]:
    """Tokens with their log-probabilities."""
    params = [SamplingParams(max_tokens=out, seed=7, logprobs=1, **FIXED) for out in outs]
    outputs = llm.generate(asked(prompts), params, progress=False)
    found: list[list[tuple[int, float]]] = []
    for output in outputs:
        choice = output.outputs[0]
        assert choice.logprobs is not None
        pairs = zip(choice.token_ids, choice.logprobs, strict=True)
        found.append([(token, at[token].logprob) for token, at in pairs])
    return found


def different(llm: LLM) -> dict[str, Any]:
    """Tokens of requests whose bits alone are not those beside 256 requests, with a cold cache and
    with a warm one."""
    prompts, outs = gpu_scripts.script(99)
    own = prompts[:ALONE], outs[:ALONE]
    alone = [scored(llm, [one], [out])[0] for one, out in zip(*own, strict=True)]
    llm.reset_prefix_cache()
    found = dict[str, Any]()
    for name in ("cold", "warm"):
        together = scored(llm, prompts, outs)[:ALONE]
        found[name] = sum(
            a != b
            for one, two in zip(alone, together, strict=True)
            for a, b in zip(one, two, strict=True)
        )
    return {"tokens": sum(outs[:ALONE]), "different": found}


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure batch_invariant; prints JSON lines.")
    parser.add_argument("model")
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES)
    parser.add_argument("--settings", type=json.loads, default={}, help="of LLM, as JSON")
    options = parser.parse_args()
    device = torch.cuda.get_device_name()
    for is_invariant in (False, True):
        what = {"model": options.model, "batch_invariant": is_invariant, "device": device}
        what |= {"commit": commit(), **options.settings}
        settings = {"load_format": "dummy", "max_model_len": 4096, **options.settings}
        with LLM(options.model, batch_invariant=is_invariant, **settings) as llm:
            for turn in range(1 + options.repeat if "script" in options.cases else 0):
                found = speed(llm, turn)
                if turn:
                    print(json.dumps(what | {"case": "script"} | found), flush=True)
            if "alone" in options.cases:
                print(json.dumps(what | {"case": "alone"} | different(llm)), flush=True)
        gc.collect()
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
