"""Run a recording again with its model, and compare the tokens."""

from collections import Counter, deque
from dataclasses import dataclass, fields
from typing import Any

from paceline.core.errors import ConfigError
from paceline.core.plan import Outputs, Plan, StepResult
from paceline.core.request import Request, child_label
from paceline.core.settings.config import Config
from paceline.core.settings.features import SpeculationConfig
from paceline.hub.repository_files import Progress, silent
from paceline.sched.replay.replayer import Replay
from paceline.wiring.assembly import build
from paceline.wiring.settings import SCHEDULER_ONLY

SIZES = ("block_size", "max_num_seqs", "max_model_len", "max_num_batched_tokens")


@dataclass(frozen=True, slots=True)
class TokenDifference:
    """A token that the model does not compute as the recorded run did."""

    label: str  # of the request, or of one of its sequences
    index: int  # in its output, from 0
    step: int
    recorded: int
    computed: int | None  # None: no token

    def __str__(self) -> str:
        found = "none" if self.computed is None else self.computed
        return (
            f"token {self.index} of {self.label!r} in step {self.step}: recorded {self.recorded}, "
            f"computed {found}"
        )


class ModelReplay:
    """Launches every replayed plan on a runner, and compares its tokens with the recorded ones.

    Plans are those of the recorded run, so a model that computes them in the same way gives the
    same tokens, in whatever mode. The replay goes on to `difference`, the first one.
    """

    def __init__(
        self, replay: Replay, model: str, progress: Progress = silent, **settings: Any
    ) -> None:
        """ConfigError if a model alone cannot repeat the run."""
        config = replay.reader.preamble.config
        if replay.steps_before:
            raise ConfigError(
                f"the recording begins after step {replay.steps_before:,}, and KV of the steps "
                "before is not in it; replay the first file of the run"
            )
        if name := replay.scheduler.view.connector:
            raise ConfigError(f"the run loaded KV by connector {name!r}, which is not recorded")
        built = build(model, progress=progress, **settings_of(config), **settings)
        self._runner: Any = built.runner
        if config.preemption.swap_space:
            self._runner.reserve_host(config.preemption.swap_space)
        here = built.scheduler.config.cache.system_fingerprint
        self.fingerprints = config.cache.system_fingerprint, here  # recorded, and of this model
        self.difference: TokenDifference | None = None
        self.compared = 0  # tokens
        self._flight = deque[int]()  # steps that were launched
        self._result: StepResult | None = None
        self._known = Counter[str]()  # tokens of each output so far
        replay.on_plan, replay.on_result, replay.on_commit = self._launch, self._wait, self._compare

    def report(self) -> list[str]:
        """Whether the model is the recorded one, and whether its tokens are, a line each."""
        then, here = self.fingerprints
        system = f"system    {here}"
        if then != here:
            system += f"; recorded by {then or 'one without a name'}: outputs may differ"
        if self.difference is not None:
            return [system, f"tokens    {self.compared:,} identical, then {self.difference}"]
        return [system, f"tokens    all {self.compared:,} identical"]

    def _launch(self, plan: Plan) -> None:
        if self.difference is not None:
            return
        for new in plan.admitted:
            check(new.request)
        self._runner.launch(plan)
        if not plan.empty:
            self._flight.append(plan.step)

    def _wait(self, plan: Plan, now: float) -> None:
        """Wait for the result of a step. Results of steps that the run gave up come before it."""
        self._result = None
        while self.difference is None and self._flight and self._flight[0] <= plan.step:
            step, result = self._flight.popleft(), self._runner.wait()
            self._result = result if step == plan.step else None

    def _compare(self, plan: Plan, outputs: Outputs) -> None:
        if (result := self._result) is None:
            return
        rows = range(len(outputs.count)) if outputs.row is None else outputs.row.tolist()
        for index, row in enumerate(rows):
            label = child_label(outputs.request_id[index], int(outputs.child[index]))
            computed = result.ids[row, : result.count[row]].tolist()
            for offset, token in enumerate(outputs.ids[index, : outputs.count[index]].tolist()):
                found = computed[offset] if offset < len(computed) else None
                if found != token and self.difference is None:
                    at = self._known[label]
                    self.difference = TokenDifference(label, at, plan.step, token, found)
                self._known[label] += 1
                self.compared += self.difference is None


def settings_of(config: Config) -> dict[str, Any]:
    """The settings of an engine whose runner fits the plans of this configuration."""
    recorded = config.to_dict()
    names = (*SIZES, *(one.name for one in fields(SpeculationConfig)))
    found = {name: recorded[name] for name in names if name not in SCHEDULER_ONLY}
    return {**found, "num_gpu_blocks_override": config.cache.num_blocks}


def check(request: Request) -> None:
    """ConfigError if the result of a request depends on something that is not recorded."""
    missing = {
        "images": bool(request.images),
        "an adapter": bool(request.adapter),
        "a constraint": request.constraint is not None,
    }
    for name in (name for name, is_there in missing.items() if is_there):
        raise ConfigError(
            f"request {request.id!r} has {name}, which a recording does not contain; replay "
            "without --model"
        )
