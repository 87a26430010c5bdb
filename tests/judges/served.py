"""Servers of paceline for the tests of others, one at a time, with the flags that a test has."""

import atexit
import itertools
import json
import os
import re
import signal
import struct
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

FOLDER = Path(os.environ.get("JUDGE_FOLDER", "/tmp/paceline-judges"))
PORT = int(os.environ.get("JUDGE_PORT", "8399"))
COMMAND = os.environ.get("JUDGE_SERVE", "paceline serve smollm2").split()
# What changes how fast a server is, or where it listens, and not what it answers.
UNCHANGED = {
    "--api-server-count",
    "--async-scheduling",
    "--block-size",
    "--device",
    "--dtype",
    "--enable-chunked-prefill",
    "--enforce-eager",
    "--gpu-memory-utilization",
    "--host",
    "--limit-mm-per-prompt",
    "--load-format",
    "--max-num-batched-tokens",
    "--max-num-seqs",
    "--port",
    "--seed",
    "--speculative-config",
    "--tokenizer",
}


def known_flags() -> set[str]:
    """The flags that `paceline serve` has, with their negations."""
    shown = subprocess.run([*COMMAND, "--help"], capture_output=True, text=True, check=True)
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", shown.stdout))


def values_of(arguments: list[str]) -> list[tuple[str, list[str]]]:
    """The flags of a command line, each with the values after it."""
    flags: list[tuple[str, list[str]]] = []
    for argument in arguments:
        if argument.startswith("--"):
            name, equals, value = argument.partition("=")
            flags.append((name, [value] if equals else []))
        elif flags:
            flags[-1][1].append(argument)
    return flags


def translated(arguments: list[str], known: set[str]) -> list[str]:
    """The part of a command line of vLLM that paceline has too, one value to a flag."""
    taken: list[str] = []
    for given, values in values_of(arguments):
        name = given.replace("_", "-")
        if name in known and name not in UNCHANGED:
            taken += [part for value in values for part in (name, value)] or [name]
    return taken


class Served:
    """The one running server; another set of flags replaces it."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.arguments: list[str] = []
        self.known = known_flags()
        atexit.register(self.stop)

    def start(self, model: str, arguments: list[str]) -> None:
        names = [] if "--served-model-name" in arguments else ["--served-model-name", model]
        wanted = [*names, *translated(arguments, self.known)]
        if self.process is not None and self.process.poll() is None and wanted == self.arguments:
            return
        self.stop()
        self.arguments = wanted
        FOLDER.mkdir(parents=True, exist_ok=True)
        with (FOLDER / "server.log").open("ab") as log:
            log.write(f"\n== {wanted}\n".encode())
            log.flush()
            self.process = subprocess.Popen(
                [*COMMAND, "--port", str(PORT), *wanted], stdout=log, stderr=log
            )
        self.wait()

    def wait(self) -> None:
        assert self.process is not None
        until = time.monotonic() + 120
        while time.monotonic() < until:
            if self.process.poll() is not None:
                last = (FOLDER / "server.log").read_text(errors="replace").splitlines()[-1:]
                raise RuntimeError(f"paceline serve {self.arguments} ended: {last}")
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/ready", timeout=5):
                    return
            except OSError:
                time.sleep(0.2)
        raise RuntimeError(f"paceline serve {self.arguments} is not ready")

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(40)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.process = None


def adapter() -> str:
    """A LoRA adapter of the embedded model that changes nothing: its second matrix is zero."""
    folder = FOLDER / "adapter"
    folder.mkdir(parents=True, exist_ok=True)
    width, rank, layers = 576, 8, 30
    config: dict[str, Any] = {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": rank,
        "target_modules": ["q_proj"],
        "base_model_name_or_path": "smollm2",
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    header: dict[str, Any] = {}
    offset = 0
    shapes = {"A": [rank, width], "B": [width, rank]}
    for layer, (letter, shape) in itertools.product(range(layers), shapes.items()):
        name = f"base_model.model.model.layers.{layer}.self_attn.q_proj.lora_{letter}.weight"
        end = offset + 4 * rank * width
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    content = struct.pack("<Q", len(text)) + text + bytes(offset)
    (folder / "adapter_model.safetensors").write_bytes(content)
    return str(folder)
