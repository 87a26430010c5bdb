"""What text costs around the scheduler: CPU time per token with a device that takes no time.

    python -m benchmarks.frontend --peer VENV/bin/python --json results.jsonl

Cases, with a number N each: `offline` (LLM, N running), `async` (AsyncLLM, N streams), `served`
(`paceline serve`, N streaming clients), `paced` (the same, with steps so long that `--rate` tokens
are made per second), `short` (answers of one token: the cost of a request), `final` and `delta`
(the peer's output processor with N running, for whole answers and for streams). Each is a line of
JSON with medians over `--repeat` runs; a table in Markdown follows.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, process_time
from typing import Any

import numpy as np

from benchmarks.null_device import MAX_MODEL_LEN, STEP_MS, STRIDE, TAPE_TOKENS, build, tape_of
from benchmarks.processes import by_role, cpu_s
from benchmarks.raw_client import RawRequest, Script, load
from benchmarks.servers import ROOT, started
from benchmarks.tables import Figures, medians, table
from benchmarks.worker import Worker
from paceline import SamplingParams
from paceline.engine.offline.offline import OfflineEngine
from paceline.engine.streaming import StreamingEngine
from paceline.hub.catalogue import DEFAULT
from paceline.text.tokenizer import Tokenizer
from paceline.wiring.model_files import download
from paceline.wiring.settings import for_batches

PEER = Path(__file__).parent / "peers" / "vllm_scheduler" / "outputs.py"
CASES = (
    *("offline:256", "offline:1024"),
    *("async:1", "async:256", "async:1024"),
    *("served:1", "served:256", "served:1024"),
    *("paced:256", "paced:1024", "short:1024"),
    *("final:256", "final:1024", "delta:256", "delta:1024"),
)
PEER_KINDS = ("final", "delta")
MOST_CLIENTS = 1024
SINGLE = 8  # requests that a single client sends, one after another
COLUMNS = {
    "tokens_per_s": "tokens/s",
    "us": "µs CPU/token",
    "core_us": "core",
    "frontend_us": "front ends",
    "supervisor_us": "supervisor",
    "chunks_per_token": "chunks/token",
    "ttft_p50_ms": "TTFT p50 ms",
    "ttft_p99_ms": "TTFT p99",
    "itl_p50_ms": "ITL p50 ms",
    "itl_p99_ms": "ITL p99",
    "client_us": "client µs",
}


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much each case does."""

    requests: int = 2048  # of a batch for LLM, and of the peer
    prompt: int = 64  # tokens
    out: int = 256  # tokens of an answer
    stream_out: int = 256  # the same where it is streamed

    @staticmethod
    def quick() -> "Sizes":
        return Sizes(requests=512, out=64, stream_out=32)


class Bench:
    """Runs one case at a time."""

    def __init__(self, options: argparse.Namespace, sizes: Sizes) -> None:
        self.options, self.sizes = options, sizes
        self.tokenizer = Tokenizer.load(download(options.model))
        self.tape = tape_of(self.tokenizer)

    def run(self, case: str) -> Iterator[Figures]:
        """The figures of each repeated run."""
        kind, _, number = case.partition(":")
        sides: dict[str, Callable[[int], Iterator[Figures]]] = {
            "offline": self._offline,
            "async": self._streams,
            "served": self._served,
            "paced": self._paced,
            "short": self._short,
        }
        yield from sides[kind](int(number))

    # -- in this process ----------------------------------------------------

    def _offline(self, running: int) -> Iterator[Figures]:
        settings = for_batches({"max_num_seqs": running})
        count = self.sizes.requests
        params = SamplingParams(max_tokens=self.sizes.out, ignore_eos=True)
        with OfflineEngine(self.options.model, build, **settings) as llm:
            llm.generate(self._prompts(0, running), params, progress=False)  # warms the code paths
            for turn in range(1, 1 + self.options.repeat):
                prompts = self._prompts(turn, count)
                with timed() as spent:
                    outputs = llm.generate(prompts, params, progress=False)
                tokens = sum(len(one.outputs[0].token_ids) for one in outputs)
                assert all(one.outputs[0].text for one in outputs)
                yield spent.per(tokens)

    def _streams(self, count: int) -> Iterator[Figures]:
        yield from asyncio.run(self._read_streams(count))

    async def _read_streams(self, count: int) -> list[Figures]:
        found: list[Figures] = []
        each = SINGLE if count == 1 else 1
        params = SamplingParams(max_tokens=self.sizes.stream_out, ignore_eos=True)
        components = build(self.options.model, max_num_seqs=max(count, 2))
        async with StreamingEngine.of(components) as engine:

            async def client(prompts: list[list[int]]) -> tuple[int, int]:
                tokens = chunks = 0
                for prompt in prompts:
                    async for piece in engine.generate(prompt, params):
                        tokens, chunks = tokens + len(piece.token_ids), chunks + 1
                return tokens, chunks

            await client(self._prompts(0, 1))  # warms the code paths
            for turn in range(1, 1 + self.options.repeat):
                prompts = self._prompts(turn, count * each)
                with timed() as spent:
                    read = await asyncio.gather(
                        *(client(prompts[number::count]) for number in range(count))
                    )
                tokens, chunks = map(sum, zip(*read, strict=True))
                found.append(spent.per(tokens) | {"chunks_per_token": round(chunks / tokens, 3)})
        return found

    # -- over HTTP ----------------------------------------------------------

    def _served(self, clients: int) -> Iterator[Figures]:
        yield from self._requested(clients, self.sizes.stream_out)

    def _short(self, clients: int) -> Iterator[Figures]:
        yield from self._requested(clients, 1)

    def _paced(self, clients: int) -> Iterator[Figures]:
        step_ms = 1e3 * clients / self.options.rate
        yield from self._requested(clients, self.sizes.stream_out, step_ms)

    def _requested(self, clients: int, out: int, step_ms: float = 0.0) -> Iterator[Figures]:
        with self._server(step_ms) as (pid, port):
            load(port, self._scripts(0, 16, out), 1)  # warms the code paths
            for turn in range(1, 1 + self.options.repeat):
                scripts = self._scripts(turn, clients, out)
                before = cpu_s(pid)
                figures = load(port, scripts, self.options.client_processes).figures()
                roles = by_role(pid, before, cpu_s(pid))
                us = {name: 1e6 * spent / figures["tokens"] for name, spent in roles.items()}
                figures |= {f"{name}_us": round(value, 2) for name, value in us.items()}
                yield figures | {"us": round(sum(us.values()), 2)}

    def _scripts(self, turn: int, clients: int, out: int) -> list[Script]:
        each = SINGLE if clients == 1 else 1
        texts = [self.tokenizer.decode(ids) for ids in self._prompts(turn, clients * each)]
        asked = [RawRequest.completion(text, out) for text in texts]
        return [asked[number::clients] for number in range(clients)]

    def _server(self, step_ms: float) -> AbstractContextManager[tuple[int, int]]:
        """`paceline serve` with the null device; yields its process id and its port."""
        flags = {"max-num-seqs": MOST_CLIENTS, "max-model-len": MAX_MODEL_LEN}
        if self.options.api_server_count:
            flags["api-server-count"] = self.options.api_server_count
        command = [sys.executable, "-m", "benchmarks.null_server", "serve", self.options.model]
        command += [word for name, value in flags.items() for word in (f"--{name}", str(value))]
        return started(command, **{STEP_MS: str(step_ms)})

    # -- the peer -----------------------------------------------------------

    def peer(self, case: str, worker: Worker, folder: Path) -> Iterator[Figures]:
        kind, _, running = case.partition(":")
        sizes = self.sizes
        spec = {"kind": kind, "running": int(running), "folder": str(folder)}
        spec |= {"requests": sizes.requests, "prompt": sizes.prompt, "out": sizes.out}
        for _ in range(self.options.repeat):
            yield worker.run(json.dumps(spec))

    def save(self, folder: Path) -> None:
        """What the peer reads: the same vocabulary and the same tokens."""
        self.tokenizer._backend.save(str(folder / "tokenizer.json"))
        np.save(folder / "tape.npy", self.tape)

    def _prompts(self, turn: int, count: int) -> list[list[int]]:
        """Pieces of the tape; each run has others, so that no prefix is cached."""
        size = self.sizes.prompt
        places = (np.arange(count) + turn * count) * STRIDE % (TAPE_TOKENS - size)
        return [self.tape[place : place + size].tolist() for place in places]


class Spent:
    """Seconds of CPU time of this process, and of the clock."""

    def __init__(self) -> None:
        self._cpu, self._wall = process_time(), perf_counter()

    def stop(self) -> None:
        self._cpu, self._wall = process_time() - self._cpu, perf_counter() - self._wall

    def per(self, tokens: int) -> Figures:
        rate = round(tokens / self._wall)
        return {"tokens": tokens, "tokens_per_s": rate, "us": round(1e6 * self._cpu / tokens, 3)}


@contextmanager
def timed() -> Iterator[Spent]:
    spent = Spent()
    yield spent
    spent.stop()


def about() -> dict[str, Any]:
    git = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    return {"commit": commit or None, "machine": os.uname().machine, "cores": os.cpu_count()}


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default=DEFAULT, help="whose tokenizer is used")
    parser.add_argument("--peer", help="python of an environment made by the peer's setup.sh")
    parser.add_argument("--cases", default=",".join(CASES), help="any of kind:number")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="fewer requests, shorter answers")
    parser.add_argument("--out", type=int, help="tokens of an answer, instead of 256")
    parser.add_argument("--rate", type=float, default=10_000.0, help="tokens/s of `paced`")
    parser.add_argument("--client-processes", type=int, default=2)
    parser.add_argument("--api-server-count", type=int, default=0, help="0: the server's default")
    parser.add_argument("--json", type=Path, metavar="FILE", help="save the lines as well")
    return parser.parse_args(given)


def main(given: Sequence[str] | None = None, sizes: Sizes | None = None) -> None:
    options = arguments(given)
    sizes = sizes or (Sizes.quick() if options.quick else Sizes())
    if options.out:
        sizes = replace(sizes, out=options.out, stream_out=options.out)
    bench = Bench(options, sizes)
    where, lines = about(), list[dict[str, Any]]()
    worker = Worker(options.peer, PEER) if options.peer else None
    with TemporaryDirectory() as folder:
        bench.save(Path(folder))
        for case in options.cases.split(","):
            if case.partition(":")[0] not in PEER_KINDS:
                runs = list(bench.run(case))
            elif worker is not None:
                runs = list(bench.peer(case, worker, Path(folder)))
            else:
                continue
            lines.append({"case": case} | medians(runs))
            peer = {} if worker is None else worker.about
            text = json.dumps(lines[-1] | where | peer)
            print(text, flush=True)
            if options.json:
                with options.json.open("a") as file:
                    print(text, file=file)
    if worker is not None:
        worker.close()
    print(f"\n{table(lines, COLUMNS)}")


if __name__ == "__main__":
    main()
