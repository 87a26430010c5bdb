"""Random schedules on a real model that drafts, checked against runs of each request alone."""

from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from paceline.core.plan import Plan, StepResult
from paceline.core.request import Request
from paceline.core.settings.features import FULL_ATTENTION, AttentionGroup
from paceline.runner.attention_backend import load as load_attention
from paceline.runner.kv_store import KVStore
from paceline.runner.models.model import Model
from paceline.runner.runner import TorchRunner
from paceline.runner.weights.dummy import Dummy
from paceline.sched.scheduler import Scheduler
from tests.property.schedules import Drive
from tests.runner.drafters import drafter_for
from tests.runner.driving import drive
from tests.runner.support import tiny

MOST_REQUESTS = 8


@cache
def model_of(vocab: int) -> Model:
    """One whose results are the same bits in any company."""
    return Model.load(Dummy(tiny(vocab_size=vocab), seed=3), weights="int8")


def runner_of(scheduler: Scheduler, vocab: int) -> TorchRunner:
    config, model = scheduler.config, model_of(vocab)
    kv = KVStore(model.config, config.cache.num_blocks, config.cache.block_size)
    sizes = config.step.max_num_seqs, config.step.max_model_len
    drafter = drafter_for(model, config.speculation)
    runner = TorchRunner(model, kv, load_attention("native"), drafter, *sizes)
    runner.reserve_host(config.preemption.swap_space)
    return runner


@dataclass(slots=True)
class ComputedSteps:
    """A runner with what the schedules ask of an oracle."""

    runner: TorchRunner
    block_size: int
    spoiled: set[str] = field(default_factory=set[str])
    reading: set[int] = field(default_factory=set[int])
    masks: Any = None
    groups: tuple[AttentionGroup, ...] = FULL_ATTENTION

    def run(self, plan: Plan) -> StepResult:
        self.runner.launch(plan)
        return StepResult.of(plan, {}) if plan.empty else self.runner.wait()

    def lose(self, plan: Plan) -> None:
        """A device that fails in a step may have computed it."""
        self.run(plan)

    def settle(self, step: int) -> None: ...

    def spoil_in(self, block: int) -> None: ...


@dataclass(slots=True)
class ModelDrive(Drive):
    """A schedule of greedy requests with drafts."""

    proposer: str = "draft_model"

    def __post_init__(self) -> None:
        Drive.__post_init__(self)
        self.spoiling = False
        runner = runner_of(self.scheduler, self.vocab)
        self.runner = ComputedSteps(runner, self.settings["block_size"])  # pyright: ignore[reportAttributeAccessIssue]
        while len(self.to_come) > MOST_REQUESTS:
            self.to_come.pop()

    def _settings(self) -> dict[str, Any]:
        drafts = self.drafting.choice([1, 3])
        return {
            **Drive._settings(self),
            "proposer": self.proposer,
            "num_speculative_tokens": drafts,
            "speculation": "fixed",
            "max_loras": 0,
        }

    def _shaped(self, request: Request) -> Request:
        return replace(request, adapter="")  # all of them are greedy

    def _with_fewer_drafts(self, plan: Plan, result: StepResult) -> StepResult:
        return result

    def _judge_one(self, request: Request, child: int, label: str) -> None:
        tokens = self._alone(replace(request, n=1, best_of=None))[request.id]
        got, end = self.got[label], self.ends[label]
        expected = tokens[: len(got)] if end in ("abort", "error", "timeout") else tokens
        assert got == expected, f"{label}: {got}, not {tokens}"

    def _judge_family(self, request: Request, length: int) -> None:
        if not request.silent:
            Drive._judge_family(self, request, length)
        elif self.ends[request.id] not in ("abort", "error", "timeout"):
            assert self.choices[request.id] == self._alone(request)[request.id]
            self.seen["silent"] += 1

    def _alone(self, request: Request) -> dict[str, Any]:
        """Without drafts, in a pool that is large enough."""
        scheduler = Scheduler.create(
            max_num_seqs=8,
            max_num_batched_tokens=128,
            max_model_len=self.settings["max_model_len"],
            num_blocks=256,
            block_size=4,
        )
        return drive(scheduler, runner_of(scheduler, self.vocab), [request])
