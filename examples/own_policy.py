"""A scheduling policy of one's own: watch it on `play`, then measure it on a trace.

A policy answers which request goes first (`rank`). This one prefers requests that ask for few
tokens; one that has waited for `ageing_s` goes before all others. Its name is `own_policy.Brief`.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from paceline.core.request import Sequence
from paceline.core.settings.config import PolicyConfig
from paceline.sched.policy import Policy, View


class Brief(Policy):
    """Requests that ask for the fewest tokens go first."""

    def __init__(self, config: PolicyConfig, view: View) -> None:
        super().__init__(config, view)
        self.patience_s = config.ageing_s

    def rank(self, sequence: Sequence) -> tuple[float, ...]:
        return (sequence.request.max_tokens,)


def paceline(*arguments: str) -> None:
    """Run a command of paceline that finds this file."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    subprocess.run([sys.executable, "-m", "paceline", *arguments], env=environ, check=True)


def write_trace(file: Path) -> None:
    """200 requests, of which every fourth generates a long text."""
    with file.open("w") as lines:
        for number in range(200):
            length = 400 if number % 4 == 0 else 20
            request = {"at_s": 0.002 * number, "input_len": 200, "output_len": length}
            lines.write(json.dumps(request) + "\n")


def main() -> None:
    paceline("play", "--policy", "own_policy.Brief", "--fast", "--no-color")
    with TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.jsonl"
        write_trace(trace)
        paceline(
            "compare",
            str(trace),
            "--policies",
            "fcfs,own_policy.Brief",
            "--settings",
            "max_num_seqs=16",
        )


if __name__ == "__main__":
    main()
