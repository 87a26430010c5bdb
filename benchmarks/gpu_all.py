"""Everything that is measured on a GPU, one process after the other; prints JSON lines.

    python -m benchmarks.gpu_all

It takes less than eight minutes. A part that fails, or takes longer than it should, is told of in
a line of its own, and the others run all the same.
"""

import json
import subprocess
import sys
from time import perf_counter

PEER_S = 30
PARTS = {
    "gpu_step qwen3-0.6b triton 1 64 256": 60,
    "gpu_offline qwen3-0.6b triton script script tight shared watermark=0.01": 70,
    "gpu_step qwen3-14b triton 1 64 256": 80,
    "gpu_offline qwen3-14b triton script": 90,
    "gpu_offline qwen3-14b triton script policy=longest fill_positions=256": 90,
    "gpu_offline qwen3-0.6b triton script tight policy=longest watermark=0.01": 60,
    f"gpu_peer qwen3-0.6b {PEER_S}": PEER_S + 60,
}  # and the seconds that each gets


def run(part: str, limit_s: int) -> str | None:
    """Let it print; what went wrong, if anything did."""
    module, *words = part.split()
    command = [sys.executable, "-m", f"benchmarks.{module}", *words]
    try:
        ended = subprocess.run(
            command, timeout=limit_s, check=False, stderr=subprocess.PIPE, text=True
        )
    except subprocess.TimeoutExpired:
        return f"not done after {limit_s} s"
    if ended.returncode == 0:
        return None
    return (ended.stderr.strip().splitlines() or ["no word"])[-1]


def main() -> None:
    begin = perf_counter()
    for part, limit_s in PARTS.items():
        if error := run(part, limit_s):
            print(json.dumps({"part": part, "error": error}), flush=True)
    print(json.dumps({"seconds": round(perf_counter() - begin)}), flush=True)


if __name__ == "__main__":
    main()
