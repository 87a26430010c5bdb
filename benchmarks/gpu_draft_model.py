"""Time a draft model on a GPU beside the model that it drafts for; prints JSON lines.

    python -m benchmarks.gpu_draft_model qwen3-14b qwen3-0.6b 1 8 64

Weights are random, in the shapes of the named models: the speed is the same. The heads of both give
all tokens the same logit, so every draft is right: the ratio is the most that this draft model can
gain. It needs numpy, torch and triton alone.

    step times    of decode steps, in which both models compute their KV, and of steps with drafts
    rows          whole runs by number of rows: without drafts and without the draft model, with the
                  draft model but no drafts, with `fixed` and with `adaptive`
"""

import gc
import json
import sys
from dataclasses import replace
from importlib.resources import files
from typing import Any

import torch

from benchmarks.gpu import MAX_MODEL_LEN, Bench, OneToken
from benchmarks.gpu_speculation import DRAFTS, measured, run
from paceline.core.capabilities import StepTimes
from paceline.core.settings.features import SpeculationConfig
from paceline.runner.cuda.drafting.draft_model import CudaDraftModel
from paceline.runner.cuda.model import CudaModel
from paceline.runner.models.config import ModelConfig
from paceline.runner.proposer import Drafter
from paceline.runner.proposers.ngram import Ngram

WAYS: dict[str, dict[str, Any]] = {
    "none": {},
    "fixed": {"num_speculative_tokens": DRAFTS, "speculation": "fixed"},
    "adaptive": {"num_speculative_tokens": DRAFTS, "speculation": "adaptive"},
}


def draft_model(name: str) -> Drafter:
    raw = json.loads((files("paceline.runner.models") / f"shapes/{name}.json").read_text())
    config = replace(ModelConfig.of_hf(raw), tied_embedding=False)
    model = CudaModel.load(OneToken(config, device="cuda"), MAX_MODEL_LEN)
    speculation = SpeculationConfig(num_speculative_tokens=DRAFTS, proposer="draft_model")
    return CudaDraftModel(speculation, model, torch.bfloat16)


def main() -> None:
    name, smaller, *rows = sys.argv[1:]
    plain = Bench(name, "triton", proposer=Ngram(SpeculationConfig()))
    unmeasured = StepTimes(((1, 1.0), (2, 1.0)), ((1, 1.0), (2, 1.0)))
    alone = {number: run(plain, number, unmeasured) for number in map(int, rows)}
    del plain
    gc.collect()  # graphs and their buffers refer to each other
    torch.cuda.empty_cache()
    bench = Bench(name, "triton", proposer=draft_model(smaller))
    times = measured(bench)
    bench.say(case="step times", draft=smaller, plain=times.plain, drafted=times.drafted)
    for number, first in alone.items():
        case = {"case": f"rows:{number}", "draft": smaller}
        bench.say(**case, speculation="no draft model", ratio=1.0, **first)
        for way, settings in WAYS.items():
            found = run(bench, number, times, **settings)
            ratio = round(found["tokens_per_s"] / first["tokens_per_s"], 3)
            bench.say(**case, speculation=way, ratio=ratio, **found)


if __name__ == "__main__":
    main()
