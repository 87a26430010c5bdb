"""One side of a comparison in a process of its own."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

Figures = dict[str, float]
Line = dict[str, str | float | None]


class Worker:
    """A script that reads cases from stdin and prints a line of JSON for each."""

    def __init__(self, python: str, script: Path) -> None:
        self._script = script
        self._process = subprocess.Popen(
            [python, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.about: Line = self._read()

    def run(self, spec: str) -> Figures:
        assert self._process.stdin is not None
        print(spec, file=self._process.stdin, flush=True)
        return {key: value for key, value in self._read().items() if key != "case"}

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _read(self) -> dict[str, Any]:
        """The next line of JSON; other lines go to stderr."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                read: dict[str, Any] = json.loads(line)
                return read
            print(line, end="", file=sys.stderr)
        raise SystemExit(f"{self._script} ended with status {self._process.wait()}")
