"""The peer's front end: vLLM 0.13.0's OutputProcessor with its incremental detokenizer.

In an environment made by `setup.sh VENV`: `VENV/bin/python outputs.py` reads lines of JSON, such as
{"kind": "delta", "running": 256, "requests": 512, "prompt": 64, "out": 256, "folder": "…"}.
The folder has a tokenizer.json, and a tape.npy with the token ids that requests answer.
"""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from time import process_time_ns
from typing import Any

os.environ.update(
    HF_HUB_OFFLINE="1",
    TRANSFORMERS_OFFLINE="1",
    VLLM_LOGGING_LEVEL="ERROR",
    VLLM_NO_USAGE_STATS="1",
)

import numpy as np
import vllm
from transformers import PreTrainedTokenizerFast
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.engine import EngineCoreOutput, EngineCoreRequest, FinishReason
from vllm.v1.engine.output_processor import OutputProcessor, RequestOutputCollector
from vllm.v1.metrics.stats import IterationStats

EOS = 2
STRIDE = 8191  # between the places on the tape where two requests begin


class OutputSide:
    """Batches of `running` requests, from the first token to the last.

    `delta` is what AsyncLLM does for streams: a queue for each request, which its reader empties
    every step, and statistics. `final` is what LLM does: no queues and no statistics.
    """

    def __init__(self, case: dict[str, Any]) -> None:
        folder = Path(case["folder"])
        self._tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
        self._tape: list[int] = np.load(folder / "tape.npy").tolist()
        self._out, self._prompt = case["out"], case["prompt"]
        self._streams = case["kind"] == "delta"
        self._processor = OutputProcessor(self._tokenizer, log_stats=self._streams)
        self._queues: list[RequestOutputCollector] = []
        self.spent_ns = self.tokens = self.texts = 0

    def run(self, first: int, count: int) -> None:
        serials = range(first, first + count)
        begin = process_time_ns()
        for serial in serials:
            self._submit(serial)
        self.spent_ns += process_time_ns() - begin
        for batch in self._batches(serials):
            begin = process_time_ns()
            stats = IterationStats() if self._streams else None
            done = self._processor.process_outputs(batch, 0.0, stats)
            found = [queue.get_nowait() for queue in self._queues] or done.request_outputs
            self.spent_ns += process_time_ns() - begin
            self.texts += sum(len(one.outputs[0].text) for one in found)
            self.tokens += len(batch)
        self._queues.clear()

    def _submit(self, serial: int) -> None:
        kind = RequestOutputKind.DELTA if self._streams else RequestOutputKind.FINAL_ONLY
        params = SamplingParams(max_tokens=self._out, ignore_eos=True, output_kind=kind)
        request = EngineCoreRequest(
            request_id=str(serial),
            prompt_token_ids=self._ids(serial, 0, self._prompt),
            mm_features=None,
            sampling_params=params,
            pooling_params=None,
            eos_token_id=EOS,
            arrival_time=0.0,
            lora_request=None,
            cache_salt=None,
            data_parallel_rank=None,
        )
        queue = RequestOutputCollector(kind) if self._streams else None
        self._processor.add_request(request, None, queue=queue)
        if queue is not None:
            self._queues.append(queue)

    def _batches(self, serials: range) -> Iterator[list[EngineCoreOutput]]:
        """What the core would send after each step; making it is not timed."""
        for step in range(self._out):
            reason = FinishReason.LENGTH if step == self._out - 1 else None
            yield [
                EngineCoreOutput(
                    str(serial),
                    self._ids(serial, self._prompt + step, 1),
                    finish_reason=reason,
                )
                for serial in serials
            ]

    def _ids(self, serial: int, place: int, count: int) -> list[int]:
        begin = (serial * STRIDE + place) % (len(self._tape) - count)
        return self._tape[begin : begin + count]


def measured(case: dict[str, Any]) -> dict[str, Any]:
    side = OutputSide(case)
    for first in range(0, case["requests"], case["running"]):
        side.run(first, min(case["running"], case["requests"] - first))
    assert side.texts > side.tokens, "the tokens have no text"
    return {
        "tokens": side.tokens,
        "tokens_per_s": round(side.tokens / side.spent_ns * 1e9),
        "us": round(side.spent_ns / side.tokens / 1e3, 3),
    }


def main() -> None:
    print(json.dumps({"peer": f"vLLM {vllm.__version__}"}), flush=True)
    for line in sys.stdin:
        print(json.dumps(measured(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
