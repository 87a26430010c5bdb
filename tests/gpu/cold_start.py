"""Starts an engine with empty caches and prints, as JSON, what it builds: until it is ready, and
afterwards for requests of every kind.

    python -m tests.gpu.cold_start MODEL [SETTING=VALUE ...]

MODEL is a shape such as qwen3-0.6b, or a folder with a config.json; weights are random. With
enable_lora, `adapters` is a list of folders, which requests use in turn. `image_mark` is the token
that stands for an image in a prompt of a model that reads some.
"""

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

ROOT = Path(__file__).parents[2]
LIMIT_S = 400
MANY = 256
PROMPT = 512  # tokens


def started_cold(model: str, **settings: Any) -> dict[str, Any]:
    """What this module prints, run in a process with empty caches."""
    with TemporaryDirectory() as folder:
        places = {"TRITON_CACHE_DIR": f"{folder}/triton", "PACELINE_CACHE": f"{folder}/paceline"}
        given = [f"{name}={json.dumps(value)}" for name, value in settings.items()]
        command = [sys.executable, "-m", "tests.gpu.cold_start", model, *given]
        ended = subprocess.run(
            command,
            env=os.environ | places,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            timeout=LIMIT_S,
            check=True,
        )
    return json.loads(ended.stdout.splitlines()[-1])


@dataclass
class Builds:
    """What was built: variants of Triton kernels, CUDA sources, kernels of humming, and graphs."""

    found: list[str] = field(default_factory=list)

    def watch(self) -> None:
        """Count from now on."""
        from triton import knobs

        from paceline.runner.cuda.gemm.humming import package as humming
        from paceline.runner.cuda.graphs import capture
        from paceline.runner.cuda.kernels import nvrtc

        knobs.runtime.jit_post_compile_hook = self._compiled
        load, record = nvrtc._compiled, capture.recording

        def loaded(source: str) -> bytes:
            sizes = " ".join(line[8:] for line in source.splitlines() if line[:8] == "#define ")
            self.found.append(f"CUDA source: {sizes}")
            return load(source)

        @contextmanager
        def recording(memory: Any) -> Iterator[Any]:
            self.found.append("a CUDA graph")
            with record(memory) as graph:
                yield graph

        nvrtc._compiled, capture.recording = loaded, recording

        if humming() is not None:
            compiler = import_module("humming.jit.compiler").NVRTCCompiler
            build = compiler._compile

            def built(*given: Any) -> Any:
                self.found.append(f"humming kernel: {' '.join(given[3].split())}")
                return build(*given)

            compiler._compile = staticmethod(built)

    def _compiled(self, *, fn: Any, compile: dict[str, Any], **_: Any) -> None:
        self.found.append(f"Triton kernel {fn.name}: {variant(compile)}")


def variant(compiled: dict[str, Any]) -> str:
    """How the arguments of a kernel are special: constants, and multiples of 16."""
    constants, multiples = compiled["constants"], compiled["configs"][0]
    words = [f"{name}={compiled[name]}" for name in ("num_warps", "num_stages")]
    for place, (name, kind) in enumerate(compiled["signature"].items()):
        is_multiple = "/16" if (place,) in multiples else ""
        words.append(f"{name}={constants.get((place,), kind)}{is_multiple}")
    return " ".join(words)


def explained(late: str, at_start: list[str]) -> str:
    """A variant, and how the most similar one at the start differs."""
    kind, _, words = late.partition(": ")
    own = set(words.split())
    others = [set(one.partition(": ")[2].split()) for one in at_start if one.startswith(f"{kind}:")]
    if not others:
        return f"{late} (none at the start)"
    near = min(others, key=lambda other: len(other ^ own))
    return f"{kind}: {sorted(own - near)} instead of {sorted(near - own)}"


class Stages(logging.Handler):
    """When each line of the log came, in seconds after the start."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._begin = perf_counter()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{perf_counter() - self._begin:6.1f} s  {record.getMessage()}")
        print(self.lines[-1], file=sys.stderr, flush=True)


Phase = tuple[str, Callable[[], Any]]


def with_images(run: Callable[..., None], mark: int) -> list[Phase]:
    """Requests with an image each: alone, in long prompts, scored, and beside others."""
    from PIL import Image

    def prompt(number: int, length: int) -> dict[str, Any]:
        image = Image.new("RGB", (64, 64), (number % 256, 90, 30))
        ids = [9] * (number % 3) + [mark] + [5 + number % 7] * length
        return {"prompt_token_ids": ids, "multi_modal_data": {"image": image}}

    def several() -> None:
        run([prompt(row, 1 + 37 * row) for row in range(40)], 9)

    def scored() -> None:
        run([prompt(40 + row, 1 + 37 * row) for row in range(20)], 9, prompt_logprobs=0)

    def one_by_one() -> None:
        for number, length in enumerate((1, 20, 500, 3000)):
            run([prompt(60 + number, length)])

    return [("images", one_by_one), ("several images", several), ("scored images", scored)]


def phases(
    llm: Any, vocab: int, most: int, adapters: list[str], mark: int | None = None
) -> list[Phase]:
    """Requests of every kind for an engine that runs up to `most` sequences."""
    from paceline import LoRARequest
    from paceline.engine.api import SamplingParams

    used = [None, *(LoRARequest(Path(one).name, 1, one) for one in adapters)]

    def prompt(number: int, length: int) -> list[int]:
        return [(number * 7919 + place * 31) % (vocab - 8) for place in range(length)]

    def run(prompts: list[Any], tokens: int = 4, **how: Any) -> None:
        params = SamplingParams(max_tokens=tokens, ignore_eos=True, **how)
        number = len(prompts)
        loras = [used[(row + number) % len(used)] for row in range(number)] if adapters else None
        outputs = llm.generate(prompts, params, progress=False, lora_request=loras)
        errors = [str(one.error) for one in outputs if one.error]
        assert not errors, errors[0]

    def rows(number: int, length: int, **how: Any) -> None:
        run([prompt(row, length) for row in range(number)], **how)

    def counts() -> None:
        for number in (1, 2, 3, 4, 5, 8, 9, 16, 17, 31, 33, 48, 65, 100, 129, 200, 256):
            rows(min(number, most), 20, temperature=0.0)

    def scored() -> None:
        for length in (1, 2, 3, 4, 5, 6, 17, 64, 100, 513, 3000):
            run([prompt(length, length)], 1, prompt_logprobs=2)
        run([prompt(row, 1 + 37 * row) for row in range(40)], 9, prompt_logprobs=0)

    many = min(MANY, most)
    edits: dict[str, Any] = {"logit_bias": {5: 2.0}, "bad_token_ids": [3], "min_tokens": 2}
    return [
        *([] if mark is None else with_images(run, mark)),
        ("numbers of rows", counts),
        ("new prompts", lambda: rows(many, PROMPT)),
        ("the same prompts, cached", lambda: rows(many, PROMPT)),
        ("the same prompts, cached, again", lambda: rows(many, PROMPT)),
        ("long prompts in chunks", lambda: rows(12, 3500, tokens=24)),
        ("many short prompts", lambda: rows(3 * many, 3)),
        ("top_k", lambda: rows(many, 24, top_k=5)),
        ("top_p", lambda: rows(7, 24, top_p=0.7, temperature=0.7)),
        ("min_p", lambda: rows(3, 24, min_p=0.1, top_k=40, top_p=0.9)),
        ("penalties", lambda: rows(9, 24, repetition_penalty=1.2, presence_penalty=0.4)),
        ("edits", lambda: rows(5, 24, stop_token_ids=[7], **edits)),
        ("allowed tokens", lambda: rows(2, 24, allowed_token_ids=[4, 5, 6])),
        ("logprobs", lambda: rows(many, 24, logprobs=5)),
        ("scored prompts", scored),
        ("several of a prompt", lambda: rows(4, 40, n=4, temperature=0.9)),
        ("beams", lambda: rows(3, 40, n=2, use_beam_search=True, beam_width=4)),
        ("repetitions", lambda: run([[5, 6, 7] * 20] * 8, 60, temperature=0.0)),
        ("repetitions, sampled", lambda: run([[5, 6, 7] * 20] * 8, 60, top_k=2)),
        ("more than fits", lambda: rows(many, 200, tokens=100, temperature=0.0)),
    ]


def main(model: str, *given: str) -> None:
    stages, builds = Stages(), Builds()
    logger = logging.getLogger("paceline")
    logger.setLevel(logging.INFO)
    logger.addHandler(stages)
    from paceline.engine.offline.offline import OfflineEngine
    from paceline.wiring.assembly import build

    builds.watch()
    settings = {name: json.loads(value) for name, _, value in (one.partition("=") for one in given)}
    adapters: list[str] = settings.pop("adapters", [])
    mark: int | None = settings.pop("image_mark", None)
    llm: Any = OfflineEngine(model, build, load_format="dummy", device="cuda", **settings)
    logger.info("ready")
    ready = len(stages.lines) - 1
    at_start, late, first_s = list(builds.found), dict[str, list[str]](), dict[str, float]()
    step = llm._engine.scheduler.config.step
    vocab = llm._engine._runner._sampler.vocab
    for name, run in phases(llm, vocab, step.max_num_seqs, adapters, mark):
        builds.found.clear()
        begin = perf_counter()
        run()
        first_s[name] = round(perf_counter() - begin, 3)
        logger.info("%s: %.2f s", name, first_s[name])
        if builds.found:
            late[name] = [explained(one, at_start) for one in builds.found]
            logger.info("LATE %s", "\n     ".join(late[name]))
    kinds = [one.partition(":")[0] for one in at_start]
    stats = llm._engine.scheduler.stats
    print(
        json.dumps(
            {
                "model": model,
                "settings": settings,
                "stages": stages.lines[: 1 + ready],
                "ready_s": float(stages.lines[ready].split()[0]),
                "at_start": {kind: kinds.count(kind) for kind in sorted(set(kinds))},
                "late": late,
                "first_s": first_s,
                "swapped_in_blocks": stats.swapped_in_blocks,
            }
        ),
        flush=True,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
