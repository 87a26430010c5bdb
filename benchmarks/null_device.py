"""A device that takes no time, under the real scheduler, engine and front end.

`build` is a factory of components: it takes the tokenizer of a model, and reads no weights. The
environment variable STEP_MS sets the least time of a step.
"""

import os
from collections import deque
from pydoc_data.topics import topics
from time import monotonic, sleep
from typing import Any

import numpy as np

from paceline.core.arrays import I32
from paceline.core.capabilities import Capabilities
from paceline.core.plan import Plan, StepResult
from paceline.core.settings.config import Config
from paceline.engine.components import EngineComponents
from paceline.hub.repository_files import Progress, silent
from paceline.sched.scheduler import Scheduler
from paceline.text.chat_template import ChatTemplate
from paceline.text.tokenizer import Tokenizer
from paceline.wiring.model_files import download
from paceline.wiring.settings import sort_settings

FACTORY = "benchmarks.null_device:build"
STEP_MS = "PACELINE_NULL_STEP_MS"
DEPTH = 2  # steps in flight, as on a GPU
TAPE_TOKENS = 1 << 16
TEXT_BYTES = 4  # of English text in a token
STRIDE = 8191  # between the places on the tape where two slots begin
MAX_MODEL_LEN = 1024
BLOCK_SIZE = 16
DEFAULTS: dict[str, Any] = {
    "max_num_batched_tokens": 8192,
    "max_num_seqs": 256,
    "max_model_len": MAX_MODEL_LEN,
    "block_size": BLOCK_SIZE,
}


def tape_of(tokenizer: Tokenizer) -> I32:
    """Token ids of Python's help texts, repeated to a fixed length: what requests answer."""
    text = "\n\n".join(topics[name] for name in sorted(topics))
    ids = tokenizer.encode(text[: TEXT_BYTES * TAPE_TOKENS])
    return np.resize(np.array(ids, np.int32), TAPE_TOKENS)


class NullRunner:
    """Each slot reads the tape from a place of its own, one token for each step."""

    capabilities = Capabilities()

    def __init__(self, tape: I32, step_s: float = 0.0) -> None:
        self._tape, self._step_s = tape, step_s
        self._steps: deque[tuple[float, StepResult]] = deque()  # each with the time of its end
        self._free_at = 0.0  # when the device has run all of them

    def launch(self, plan: Plan) -> None:
        if plan.empty:
            return
        rows = plan.rows
        places = (rows.slot * STRIDE + plan.step) % TAPE_TOKENS
        result = StepResult(self._tape[places][:, None], rows.samples.astype(np.int32))
        self._free_at = max(self._free_at, monotonic()) + self._step_s
        self._steps.append((self._free_at, result))

    def wait(self) -> StepResult:
        done_at, result = self._steps.popleft()
        if self._step_s:
            sleep(max(done_at - monotonic(), 0.0))
        return result

    def is_lost(self) -> bool:
        return False

    def close(self) -> None:
        """There is nothing to release."""


def build(model: str, *, progress: Progress = silent, **settings: Any) -> EngineComponents:
    """A factory of components, with memory for all requests that may run."""
    given, _ = sort_settings(settings)
    chosen = DEFAULTS | given
    blocks = chosen["max_num_seqs"] * (chosen["max_model_len"] // chosen["block_size"] + 1)
    tokenizer = Tokenizer.load(download(model, progress))
    runner = NullRunner(tape_of(tokenizer), float(os.environ.get(STEP_MS, "0")) / 1e3)
    scheduler = Scheduler(Config.of(**chosen, num_blocks=blocks))
    template = ChatTemplate.of(tokenizer)
    return EngineComponents(model, scheduler, runner, tokenizer, template, depth=DEPTH)
