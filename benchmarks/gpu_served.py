"""What clients get from one GPU: servers under load, and batches through `LLM`.

    python -m benchmarks.gpu_served                      # all parts, ours, and vLLM if installed
    python -m benchmarks.gpu_served served crowd --api-server-count 4
    python -m benchmarks.gpu_served --tiny               # a tiny model on any device, to try it

Parts: `served` (1, 32 and 256 clients, 100 to 1,024 tokens in and out), `crowd` (1,024 clients, 64
to 128 in and 128 to 256 out, as many running), `shared` (through LLM: 1,024 prompts in 64 groups
that share 1,024 tokens) and `batch` (through LLM: 512 prompts, in the shape of SmolLM2). A client
that is done sends the next request, until all have been sent. Weights are random. Every run is a
line of JSON as soon as it is done; a table of medians follows each part.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

from benchmarks import gpu_scripts
from benchmarks.processes import by_role, cpu_s
from benchmarks.raw_client import RawRequest, Script, load
from benchmarks.servers import ROOT, started
from benchmarks.tables import Figures, medians, table
from paceline.text.chat_template import CHATML
from paceline.wiring.model_files import bytes_as_tokens

MAX_MODEL_LEN = 2048
LIMIT_S = 150  # of a part through LLM
# Requests per client, by the number of clients. With one each, the figures would be those of the
# longest answers, after most of the others have ended.
EACH = {1: 4, 32: 10, 256: 6, 1024: 6}
SMOLLM2 = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-05,
    "rope_theta": 100000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
}
TINY = SMOLLM2 | {
    "vocab_size": 12000,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}
COLUMNS = {
    "engine": "engine",
    "tokens_per_s": "tokens/s",
    "ttft_p50_ms": "TTFT p50 ms",
    "ttft_p99_ms": "TTFT p99",
    "tpot_ms": "TPOT ms",
    "itl_p50_ms": "ITL p50 ms",
    "itl_p99_ms": "ITL p99",
    "chunks_per_token": "chunks/token",
    "core_us": "core µs/token",
    "frontend_us": "front ends",
    "supervisor_us": "supervisor",
    "client_us": "client",
    "start_s": "start s",
}
OWN = {"smollm2": SMOLLM2, "tiny": TINY}
PARTS = ("served", "crowd", "shared", "batch")

Line = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Engine:
    """One side: how it is started."""

    name: str  # of its package
    python: str
    environment: dict[str, str]

    def server(self, folder: Path, options: argparse.Namespace, running: int) -> list[str]:
        flags: dict[str, Any] = {"load-format": "dummy", "max-num-seqs": running}
        flags |= {"max-model-len": MAX_MODEL_LEN}
        if options.api_server_count:
            flags["api-server-count"] = options.api_server_count
        module = {"paceline": "paceline", "vllm": "vllm.entrypoints.cli.main"}[self.name]
        words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
        more = shlex.split(options.serve_flags) if self.name == "paceline" else []
        return [self.python, "-m", module, "serve", str(folder), *words, *more]


class Bench:
    """Runs the parts of one engine."""

    def __init__(self, options: argparse.Namespace, folders: dict[str, Path]) -> None:
        self._options, self._folders = options, folders

    def run(self, part: str, engine: Engine) -> Iterator[Line]:
        """A line for each run."""
        if part in ("served", "crowd"):
            yield from self._served(part, engine)
        else:
            yield from self._batches(part, engine)

    def _served(self, part: str, engine: Engine) -> Iterator[Line]:
        clients = (1, 32, 256) if part == "served" else (1024,)
        if self._options.tiny:
            clients = (1, 4) if part == "served" else (8,)
        begin = perf_counter()
        command = engine.server(self._folders["model"], self._options, max(clients[-1], 32))
        with started(command, **engine.environment) as (pid, port):
            start_s = round(perf_counter() - begin, 1)
            for count in clients:
                for turn in range(self._options.repeat):
                    figures = self._loaded(pid, port, self._scripts(part, count, turn))
                    yield {"case": f"{part}:{count}", **figures, "start_s": start_s}

    def _loaded(self, pid: int, port: int, scripts: list[Script]) -> Figures:
        before = cpu_s(pid)
        figures = load(port, scripts, self._options.client_processes).figures()
        roles = by_role(pid, before, cpu_s(pid))
        us = {f"{name}_us": 1e6 * spent / figures["tokens"] for name, spent in roles.items()}
        return figures | {name: round(value, 2) for name, value in us.items()}

    def _scripts(self, part: str, clients: int, turn: int) -> list[Script]:
        """The requests of each client. Every run has prompts of its own: none is cached."""
        make = gpu_scripts.script if part == "served" else gpu_scripts.crowd
        each = EACH.get(clients, 1)
        prompts, outs = list[list[int]](), list[int]()
        while len(prompts) < clients * each:
            found = make(1000 * clients + 100 * turn + len(prompts))
            prompts, outs = prompts + found[0], outs + found[1]
        if self._options.tiny:
            prompts, outs = [prompt[:16] for prompt in prompts], [out // 16 for out in outs]
        asked = [
            RawRequest.completion(prompt, out, temperature=0.6)
            for prompt, out in zip(prompts, outs, strict=True)
        ]
        return [asked[at * each : (at + 1) * each] for at in range(clients)]

    def _batches(self, part: str, engine: Engine) -> Iterator[Line]:
        options = self._options
        folder = self._folders["small" if part == "batch" else "model"]
        settings: Line = {"max_model_len": MAX_MODEL_LEN}
        settings["max_num_seqs"] = 512 if part == "batch" else 256
        command = [engine.python, "-m", "benchmarks.gpu_llm", engine.name, str(folder), part]
        command += ["--repeat", str(options.repeat), "--settings", json.dumps(settings)]
        if options.tiny:
            command += ["--requests", "4"]
        yield from ({"case": part, **line} for line in printed(command, engine.environment))


def printed(command: list[str], environment: dict[str, str]) -> Iterator[Line]:
    """The lines of JSON that a command prints, as they come."""
    with subprocess.Popen(
        ["timeout", str(LIMIT_S), *command],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("{"):
                yield json.loads(line)
            else:
                print(line, end="", file=sys.stderr)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with status {process.returncode}")


def engines(peer: str | None) -> list[Engine]:
    """Ours, and vLLM where it is installed: in the environment of `peer`, or in this one."""
    here = {"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])}
    found = [Engine("paceline", sys.executable, here)]
    if peer:
        found.append(Engine("vllm", peer, {"PYTHONPATH": str(ROOT)}))
    elif find_spec("vllm"):
        found.append(Engine("vllm", sys.executable, here))
    return found


def model_folder(parent: Path, name: str) -> Path:
    """A config.json and a tokenizer.json, for both engines: a token for each byte, and numbers."""
    if (Path(name) / "config.json").is_file():
        config = json.loads((Path(name) / "config.json").read_text())
    elif name in OWN:
        config = OWN[name]
    else:
        config = json.loads((files("paceline.runner.models") / f"shapes/{name}.json").read_text())
    folder = parent / Path(name).name
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config | {"torch_dtype": "bfloat16"}))
    given = Path(name) / "tokenizer.json"
    if given.is_file():
        (folder / given.name).write_bytes(given.read_bytes())
    else:
        bytes_as_tokens(config["vocab_size"], CHATML).backend.save(str(folder / given.name))
    kind = {"tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(kind))
    return folder


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--model", default="qwen3-0.6b", help="a shape, or a folder")
    parser.add_argument("--small-model", default="smollm2", help="of `batch`: the same")
    parser.add_argument("--tiny", action="store_true", help="a tiny model, and few requests")
    parser.add_argument("--peer", help="python of an environment with vLLM")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--client-processes", type=int, default=6)
    parser.add_argument("--api-server-count", type=int, default=0, help="0: the server's default")
    parser.add_argument("--serve-flags", default="", help="further flags of `paceline serve`")
    parser.add_argument("--json", type=Path, metavar="FILE", help="save the lines as well")
    options = parser.parse_args()
    if unknown := sorted(set(options.parts) - set(PARTS)):
        parser.error(f"unknown parts {unknown}; there are {', '.join(PARTS)}")
    if options.tiny:
        options.model = options.small_model = "tiny"
    return options


def emit(line: Line, file: Path | None) -> Line:
    print(json.dumps(line), flush=True)
    if file:
        with file.open("a") as lines:
            print(json.dumps(line), file=lines)
    return line


def summary(lines: Sequence[Line]) -> list[Line]:
    """Medians of the runs of each case and engine."""
    groups: dict[tuple[str, str], list[Line]] = {}
    for line in lines:
        groups.setdefault((line.pop("case"), line.pop("engine")), []).append(line)
    return [
        {"case": case, "engine": engine, **medians(runs)} for (case, engine), runs in groups.items()
    ]


def main() -> None:
    options = arguments()
    begin = perf_counter()
    with TemporaryDirectory() as parent:
        names = {"model": options.model, "small": options.small_model}
        made = {name: model_folder(Path(parent), name) for name in set(names.values())}
        bench = Bench(options, {use: made[name] for use, name in names.items()})
        for part in options.parts or PARTS:
            lines: list[Line] = []
            for engine in engines(options.peer):
                try:
                    for line in bench.run(part, engine):
                        lines.append(emit({"engine": engine.name, **line}, options.json))
                except SystemExit as error:
                    emit({"engine": engine.name, "case": part, "error": str(error)}, options.json)
            if lines:
                print(f"\n{table(summary(lines), COLUMNS)}\n", flush=True)
    print(json.dumps({"seconds": round(perf_counter() - begin)}), flush=True)


if __name__ == "__main__":
    main()
