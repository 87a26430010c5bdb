"""Promise 6 on real weights: greedy output is the same however a request is scheduled.

The model is fetched as `paceline serve` fetches it, once for each cache folder.
"""

from dataclasses import dataclass
from typing import Any

import pytest

from paceline import SamplingParams, Scheduler
from paceline.core.settings.load import LoadConfig
from paceline.engine.components import EngineComponents
from paceline.engine.offline.offline import OfflineEngine
from paceline.hub.repository_files import silent
from paceline.runner.attention_backend import load
from paceline.runner.kv_store import KVStore
from paceline.runner.models.model import Model
from paceline.runner.native.library import is_available
from paceline.runner.proposers.ngram import Ngram
from paceline.runner.runner import TorchRunner
from paceline.sched.stats import Stats
from paceline.text.chat_template import ChatTemplate
from paceline.wiring.model import ModelSource, find_model
from paceline.wiring.settings import Hardware, resolve, sort_settings

STORY = "Once upon a time, in a village by the sea, there lived an old fisherman who "
PROMPTS = [
    STORY + "had three sons.",
    STORY + "never went out to fish.",
    "The first ten prime numbers are",
    "def fibonacci(n):\n    ",
]
TOKENS = 16
GREEDY = SamplingParams(temperature=0.0, max_tokens=TOKENS, ignore_eos=True)


@dataclass(frozen=True)
class Real:
    """The weights, once, for all engines of this file."""

    source: ModelSource
    model: Model

    def run(self, prompts: list[str], **settings: Any) -> tuple[list[tuple[int, ...]], Stats]:
        """What an engine with these settings makes of prompts that come together."""
        rest, own = sort_settings({"max_num_seqs": 4, "max_model_len": 128} | settings)
        config = resolve(rest, own, self.source.checkpoint.config, Hardware(2**32))
        kv = KVStore(
            self.source.checkpoint.config, config.cache.num_blocks, config.cache.block_size
        )
        step = config.step
        sizes = step.max_num_seqs, step.max_model_len
        runner = TorchRunner(self.model, kv, load("native"), Ngram(config.speculation), *sizes)
        if config.preemption.swap_space:
            runner.reserve_host(config.preemption.swap_space)
        scheduler, tokenizer = Scheduler(config), self.source.tokenizer
        template = ChatTemplate.of(tokenizer)
        components = EngineComponents(
            "smollm2", scheduler, runner, tokenizer, template, depth=max(own.depth, 1)
        )
        llm = OfflineEngine("smollm2", lambda name, **settings: components)
        outputs = llm.generate(prompts, GREEDY, progress=False)
        return [output.outputs[0].token_ids for output in outputs], scheduler.stats


@pytest.fixture(scope="module")
def real() -> Real:
    source = find_model("smollm2", LoadConfig(), "cpu", silent)
    weights = "int8" if is_available() else "float32"
    return Real(source, Model.load(source.checkpoint, weights=weights))


@pytest.fixture(scope="module")
def alone(real: Real) -> list[tuple[int, ...]]:
    """Each prompt in an engine of its own, computed in one piece, with nothing to find."""
    return [real.run([prompt], enable_prefix_caching=False)[0][0] for prompt in PROMPTS]


def test_the_model_says_something(real: Real, alone: list[tuple[int, ...]]) -> None:
    assert len(set(alone)) == len(PROMPTS)
    assert "2, 3, 5, 7" in real.source.tokenizer.decode(list(alone[2]))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"depth": 2},
        {"max_num_batched_tokens": 8},
        {"discipline": "prefill_first"},
        {"num_gpu_blocks_override": 6, "max_model_len": 64},
        {"num_gpu_blocks_override": 6, "max_model_len": 64, "depth": 2},
        {"num_gpu_blocks_override": 6, "max_model_len": 64, "swap_space": 0.01}
        | {"preemption_mode": "swap"},
    ],
    ids=lambda settings: "-".join(settings) or "together",
)
def test_neighbours_and_scheduling_change_nothing(
    real: Real, alone: list[tuple[int, ...]], settings: dict[str, Any]
) -> None:
    outputs, stats = real.run(PROMPTS, **settings)
    assert outputs == alone
    tight = "num_gpu_blocks_override" in settings
    assert (stats.preemptions > 0) == tight
    assert (stats.swapped_in_blocks > 0) == ("preemption_mode" in settings)


def test_a_prefix_that_is_found_changes_nothing(real: Real, alone: list[tuple[int, ...]]) -> None:
    outputs, stats = real.run([*PROMPTS, *PROMPTS], max_num_seqs=2)
    assert outputs == [*alone, *alone]
    assert stats.prefix_hits > 2 * 16
