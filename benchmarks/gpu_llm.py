"""Batches through `LLM`, ours or vLLM's, on one model with random weights; prints JSON lines.

    python -m benchmarks.gpu_llm paceline FOLDER shared --repeat 3

The folder has a config.json and a tokenizer.json. Every run has prompts of its own. With `--schema`
outputs follow a schema of `grammar_cases`, in vLLM by its default backend.
"""

import argparse
import json
from importlib import import_module
from time import perf_counter
from typing import Any

from benchmarks import gpu_scripts
from benchmarks.grammar_cases import CASES as SCHEMAS

CASES = {"shared": gpu_scripts.shared, "batch": gpu_scripts.batch, "script": gpu_scripts.script}


def constrained(engine: str, schema: str | None) -> dict[str, Any]:
    """Settings of `SamplingParams` for outputs that follow a schema."""
    if schema is None:
        return {}
    value = SCHEMAS[schema].value
    if engine == "paceline":
        return {"structured_outputs": {"json": value}}
    params = import_module("vllm.sampling_params").StructuredOutputsParams
    return {"structured_outputs": params(json=value)}


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure LLM.generate; prints JSON lines.")
    parser.add_argument("engine", choices=("paceline", "vllm"))
    parser.add_argument("folder")
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--requests", type=int, help="only so many of the case")
    parser.add_argument("--schema", choices=SCHEMAS, help="that outputs follow")
    parser.add_argument("--settings", type=json.loads, default={}, help="of LLM, as JSON")
    options = parser.parse_args()
    engine = import_module(options.engine)
    begin = perf_counter()
    llm = engine.LLM(options.folder, load_format="dummy", **options.settings)
    load_s = round(perf_counter() - begin, 1)
    for turn in range(options.repeat):
        prompts, outs = CASES[options.case](turn + 1)
        outs = outs[: options.requests]
        asked: list[Any] = [{"prompt_token_ids": ids} for ids in prompts[: options.requests]]
        fixed = {"temperature": 0.6, "ignore_eos": True}
        fixed |= constrained(options.engine, options.schema)
        params = [engine.SamplingParams(max_tokens=out, **fixed) for out in outs]
        begin = perf_counter()
        outputs = llm.generate(asked, params, use_tqdm=False)
        taken = perf_counter() - begin
        tokens = sum(len(one.outputs[0].token_ids) for one in outputs)
        assert tokens == sum(outs), f"{tokens} tokens came out instead of {sum(outs)}"
        figures = {"tokens": tokens, "seconds": round(taken, 3)}
        figures |= {"tokens_per_s": round(tokens / taken), "start_s": load_s}
        print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
