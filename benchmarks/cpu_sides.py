"""Three engines on one model and one CPU: ours, transformers and llama.cpp."""

import json
import subprocess
from pathlib import Path
from random import Random
from time import perf_counter
from typing import Any, Protocol

import torch
import transformers

from paceline import LLM, SamplingParams

CONTEXT = 128  # tokens of a prompt whose decoding is measured
PREFILL = 512
STEPS = 32
SETTINGS: dict[str, Any] = {
    "enable_prefix_caching": False,
    "max_num_batched_tokens": 8192,  # all prompts in the first step, so that all decode together
    "max_model_len": 1024,
    "kv_cache_gib": 1.0,
}


def prompts(count: int, length: int) -> list[list[int]]:
    """Random words: speed does not depend on what a text says."""
    random = Random(f"{count} {length}")
    return [[random.randrange(100, 40_000) for _ in range(length)] for _ in range(count)]


class Side(Protocol):
    """Tokens a second of one engine."""

    def prefill(self) -> float: ...
    def decode(self, count: int) -> float: ...


class Ours:
    def __init__(self, model: Path, threads: int, weights: str) -> None:
        self._llm = LLM(str(model), threads=threads, weights=weights, **SETTINGS)

    def prefill(self) -> float:
        return PREFILL / self._times(prompts(1, PREFILL), 1)[0]

    def decode(self, count: int) -> float:
        times = self._times(prompts(count, CONTEXT), 1 + STEPS)
        return count * (len(times) - 1) / (times[-1] - times[0])

    def _times(self, asked: list[list[int]], tokens: int) -> list[float]:
        """When each step ended, from the moment of asking."""
        params = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True)
        times: list[float] = []
        begin = perf_counter()
        for prompt in asked:
            self._llm.enqueue(prompt, params)
        while self._llm.unfinished:
            self._llm.step()
            times.append(perf_counter() - begin)
        assert len(times) == tokens, f"{len(times)} steps for {tokens} tokens"
        return times


class Transformers:
    """`generate` in float32, all prompts as one batch."""

    def __init__(self, model: Path) -> None:
        transformers.utils.logging.disable_progress_bar()
        self._model: Any = transformers.AutoModelForCausalLM.from_pretrained(
            model.parent, gguf_file=model.name, dtype=torch.float32
        ).eval()

    def prefill(self) -> float:
        return PREFILL / self._times(prompts(1, PREFILL), 1)[0]

    def decode(self, count: int) -> float:
        times = self._times(prompts(count, CONTEXT), 1 + STEPS)
        return count * STEPS / (times[-1] - times[0])

    def _times(self, asked: list[list[int]], tokens: int) -> list[float]:
        times: list[float] = []
        begin = perf_counter()

        def note(ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
            times.append(perf_counter() - begin)
            return torch.zeros(len(ids), dtype=torch.bool)

        ids = torch.tensor(asked)
        self._model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            min_new_tokens=tokens,
            max_new_tokens=tokens,
            do_sample=False,
            pad_token_id=2,
            stopping_criteria=transformers.StoppingCriteriaList([note]),
        )
        return times


class LlamaCpp:
    """llama-batched-bench, which times nothing but its decoder, on the Q8_0 file."""

    def __init__(self, folder: Path, threads: int) -> None:
        self._program = folder / "build" / "bin" / "llama-batched-bench"
        self._model, self._threads = folder / "model-q8_0.gguf", threads

    def prefill(self) -> float:
        return self._run(1, PREFILL, 1)["speed_pp"]

    def decode(self, count: int) -> float:
        return self._run(count, CONTEXT, STEPS)["speed_tg"]

    def _run(self, count: int, length: int, steps: int) -> dict[str, float]:
        room = count * (length + steps)
        options = ["-c", room, "-b", 2048, "-ub", 512, "-npp", length, "-ntg", steps, "-npl", count]
        options += ["-t", self._threads, "-tb", self._threads, "--output-format", "jsonl"]
        command = [str(self._program), "-m", str(self._model), *map(str, options)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        (line,) = (line for line in done.stdout.splitlines() if line.startswith("{"))
        return json.loads(line)
