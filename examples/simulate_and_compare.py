"""Simulate a server under a load, then the same load under other policies. It needs no GPU.

The engine and the scheduler are the real ones. Time is virtual: a profile says how long each step
takes, here on one H200 with Qwen3 8B.
"""

import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

LOAD = (
    *("--profile", "h200-qwen3-8b", "--rate", "40", "--num-requests", "400", "--seed", "1"),
    *("--input-len", "lognormal:600:0.8", "--output-len", "exponential:150"),
    *("--tenants", "chat=3", "--tenants", "batch=1", "--set", "max_num_seqs=64"),
)


def paceline(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "paceline", *arguments], check=True)


def main() -> None:
    with TemporaryDirectory() as folder:
        file = Path(folder) / "report.json"
        paceline("simulate", *LOAD, "--goodput", "ttft:500", "--output", str(file))
        report = json.loads(file.read_text())
        print("the report as JSON has", ", ".join(report))
    paceline("compare", *LOAD, "--policies", "fcfs,fair,shortest,deadline", "--goodput", "ttft:500")


if __name__ == "__main__":
    main()
