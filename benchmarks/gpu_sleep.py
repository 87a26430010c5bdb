"""How long sleep, wake-up and new weights take on a GPU, and how much memory is given back.

    python -m benchmarks.gpu_sleep qwen3-0.6b qwen3-14b

Models are shapes with random weights. Each line of JSON is one model: seconds of the start, of
sleep and wake-up at level 1 (twice) and 2, of an update with the weights of the start, and with
`--file` of updates from a file in shared memory; `tokens_are_same` after all of it; memory in GiB.
Some memory stays: `kept_gib` is what the process holds on the GPU while it sleeps.
"""

import argparse
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import torch
from safetensors.torch import save_file

from paceline import LLM, SamplingParams
from paceline.runner.models.describe import config_in
from paceline.runner.weights.dummy import Dummy

GIB = 1 << 30
GREEDY = SamplingParams(max_tokens=32, temperature=0.0, ignore_eos=True)
PROMPTS = [{"prompt_token_ids": [(7 * one + 3) % 997 for one in range(64 * n)]} for n in (1, 4, 9)]


def seconds(work: Callable[[], Any]) -> float:
    begin = perf_counter()
    work()
    torch.cuda.synchronize()
    return round(perf_counter() - begin, 3)


def said(llm: LLM) -> list[Any]:
    return [one.outputs[0].token_ids for one in llm.generate(PROMPTS, GREEDY, progress=False)]


def free_gib() -> float:
    return round(torch.cuda.mem_get_info()[0] / GIB, 2)


def measured(model: str, share: float, has_file: bool) -> dict[str, Any]:
    whole = free_gib()
    begin = perf_counter()
    settings: dict[str, Any] = {"load_format": "dummy", "enable_sleep_mode": True}
    with LLM(model, gpu_memory_utilization=share, **settings) as llm:
        found: dict[str, Any] = {"model": model, "start_s": round(perf_counter() - begin, 2)}
        due = said(llm)
        found["awake_free_gib"] = free_gib()
        for turn, level in (("", 1), ("again_", 1), ("level_2_", 2)):
            found[f"{turn}sleep_s"] = seconds(partial(llm.sleep, level))
            found["asleep_free_gib"] = free_gib()
            found[f"{turn}wake_up_s"] = seconds(llm.wake_up)
        found["kept_gib"] = round(whole - found["asleep_free_gib"], 2)
        found["update_s"] = seconds(llm.update_weights)
        found["tokens_are_same"] = said(llm) == due
        return found | (updates_from_file(llm, model) if has_file else {})


def updates_from_file(llm: LLM, model: str) -> dict[str, Any]:
    """Updates awake, and before KV wakes up."""
    found: dict[str, Any] = {}
    source = Dummy(config_in(model), device="cuda")
    with TemporaryDirectory(dir="/dev/shm") as folder:
        file = Path(folder) / "model.safetensors"
        save_file({name: source.read(name).bfloat16().cpu() for name in source.shapes}, file)
        found["file_gib"] = round(file.stat().st_size / GIB, 2)
        found["file_update_s"] = seconds(lambda: llm.update_weights(file))
        llm.sleep()
        llm.wake_up(["weights"])
        found["file_update_without_kv_s"] = seconds(lambda: llm.update_weights(file))
        llm.wake_up(["kv_cache"])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure sleep and new weights; prints JSON.")
    parser.add_argument("models", nargs="+")
    parser.add_argument("--gpu-memory-utilization", type=float, default=0.9)
    parser.add_argument("--file", action="store_true", help="update from a file too")
    options = parser.parse_args()
    for model in options.models:
        found = measured(model, options.gpu_memory_utilization, options.file)
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
