"""Simulate the runs of gpu_speculation: what drafts gain, by requests and by how many are right.

    python -m benchmarks.simulated_speculation
    python -m benchmarks.simulated_speculation --profile h200-qwen3-8b --drafts 3

Requests begin together; their prompts are not timed. Prints one JSON line for each number of
requests: tokens per second without drafts, and times as many with them. It needs no GPU.
"""

import argparse
import json
from dataclasses import replace
from typing import Any

from paceline.simulator.device.profile import FrontEndTerms, Profile
from paceline.simulator.device.timed_runner import Drafting
from paceline.simulator.requests import SimulatedRequest
from paceline.simulator.server import ServerModel, SimulatedServer
from paceline.workloads.call import Segment

CONTEXT, OUTPUT = 512, 256  # as in gpu_speculation
SHARES = (0.0, 0.5, 0.9)
ROWS = 256


def tokens_per_s(profile: Profile, rows: int, settings: dict[str, Any], share: float) -> float:
    """From the last first token to the last token, as the slowest request sees it."""
    prompts = [(Segment(str(row), CONTEXT),) for row in range(rows)]
    load = [SimulatedRequest(str(row), 0.0, one, OUTPUT) for row, one in enumerate(prompts)]
    together = {"max_num_seqs": ROWS, "max_num_batched_tokens": ROWS * CONTEXT}
    model = ServerModel(profile, {**together, **settings}, http=False, drafting=Drafting(share))
    log = SimulatedServer(model, load).run().log
    return rows * (OUTPUT - 1) / float(log.ended.max() - log.first.max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("rows", type=int, nargs="*", default=[1, 8, 64, ROWS])
    parser.add_argument("--profile", default="h200-qwen3-0.6b")
    parser.add_argument("--drafts", type=int, default=4)
    args = parser.parse_args()
    profile = replace(Profile.load(args.profile), frontend=FrontEndTerms())
    for rows in args.rows:
        plain = tokens_per_s(profile, rows, {}, 0.0)
        found: dict[str, object] = {"requests": rows, "tokens_per_s": round(plain)}
        for kind in ("fixed", "adaptive"):
            own = {"num_speculative_tokens": args.drafts, "speculation": kind}
            rates = [tokens_per_s(profile, rows, own, share) for share in SHARES]
            found[kind] = [round(rate / plain, 2) for rate in rates]
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
