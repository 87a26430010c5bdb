"""Our class decides every recorded step of vLLM 0.13.0 as vLLM's own class did."""

from itertools import zip_longest
from typing import Any

import pytest

from paceline.integrations.vllm import PacelineScheduler
from tests.recorded.cases import Settings, play
from tests.recorded.record_vllm import VllmEngine, make_scheduler
from tests.recorded.test_against_vllm import CASES, DECISIONS, part, recorded_steps

FIELDS = (*DECISIONS, "blocks")


class PluginEngine(VllmEngine):
    """Our class, driven as vLLM's is."""

    def _make(self, settings: Settings) -> Any:
        return make_scheduler(PacelineScheduler, settings)

    def _preempted(self) -> list[str]:
        assert self._decision is not None
        return sorted(self._decision.preempted_req_ids)


@pytest.mark.parametrize("name", CASES)
def test_every_step_is_decided_as_vllm_decided_it(name: str) -> None:
    case = CASES[name]
    pairs = zip_longest(recorded_steps(name), play(case, PluginEngine(case.settings)))
    for at, (theirs, ours) in enumerate(pairs):
        for field in FIELDS:
            assert part(ours, field) == part(theirs, field), f"step {at}, {field}"
