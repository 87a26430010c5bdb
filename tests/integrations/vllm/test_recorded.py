"""In vLLM's form, too, every recorded step is decided as vLLM 0.13.0 decided it."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import zip_longest

import pytest

from paceline.integrations.vllm.settings import EngineLimits, scheduler_config
from paceline.integrations.vllm.worker_steps import NULL_BLOCKS, WorkerStep, WorkerSteps
from tests.recorded.cases import Ask, Settings, Step, play
from tests.recorded.test_against_vllm import CASES, DECISIONS, part, recorded_steps, request_of

FIELDS = (*DECISIONS, "blocks")
# A third of each family: `tests/recorded` compares all of them with the scheduler itself.
CHOSEN = [name for name in CASES if int(name[-2:]) % 3 == 0]


def limits_of(settings: Settings) -> EngineLimits:
    return replace(EngineLimits(**settings), num_blocks=settings["num_blocks"] + NULL_BLOCKS)


class StepsEngine:
    """Our scheduler in vLLM's form, with results in another order than the rows."""

    def __init__(self, settings: Settings) -> None:
        self._steps = WorkerSteps(scheduler_config(limits_of(settings), {}))
        self._step: WorkerStep | None = None

    def submit(self, ask: Ask, now: float) -> None:
        self._steps.scheduler.submit(request_of(ask, now), now)

    def abort(self, request_id: str, now: float) -> str:
        state = self._steps.scheduler.snapshot()["requests"][request_id]["state"]
        self._steps.abort(request_id, now)
        return state

    def plan(self, step: Step, now: float) -> list[str]:
        ours = self._step = self._steps.plan(now)
        later = ours.later
        step.tokens = ours.tokens
        step.preempted = list(ours.plan.preempted)
        step.finished = sorted(ours.finished)
        for new in ours.new:
            step.new.append(new.id)
            step.cached[new.id] = new.computed
            step.blocks[new.id] = usable(new.blocks)
        for name, computed, blocks in zip(later.ids, later.computed, later.blocks, strict=True):
            if name in later.resumed:
                step.resumed.append(name)
                step.cached[name] = computed
            if blocks is not None:
                step.blocks[name] = usable(blocks)
        rows = ours.plan.rows
        return rows.request_id[rows.samples].tolist()

    def commit(self, sampled: dict[str, int], now: float) -> dict[str, str]:
        assert self._step is not None
        names = sorted(self._step.tokens, reverse=True)
        place = {name: row for row, name in enumerate(names)}
        tokens = [[sampled[name]] if name in sampled else [] for name in names]
        yielded = self._steps.commit(self._step, tokens, place, now)
        assert dict(zip(yielded.ids, yielded.tokens, strict=True)) == {
            name: [token] for name, token in sampled.items()
        }
        return {end.request_id: end.finish.value for end in yielded.ended}


def usable(blocks: tuple[list[int]]) -> list[int]:
    assert min(blocks[0]) >= NULL_BLOCKS
    return [block - NULL_BLOCKS for block in blocks[0]]


def differences(name: str) -> Iterator[str]:
    case = CASES[name]
    pairs = zip_longest(recorded_steps(name), play(case, StepsEngine(case.settings)))
    for at, (theirs, ours) in enumerate(pairs):
        for field in FIELDS:
            expected, got = part(theirs, field), part(ours, field)
            if expected != got:
                yield f"{name}, step {at}, {field}:\n  vLLM {expected}\n  ours {got}"


@pytest.mark.parametrize("name", CHOSEN)
def test_every_step_is_decided_as_vllm_decided_it(name: str) -> None:
    assert next(differences(name), None) is None
