"""Our scheduler in vLLM 0.13.0, as vLLM's engine core calls it, without a model or a device.

In an environment made by `setup.sh VENV`: `VENV/bin/python plugin.py steady:64 async:64 churn`.
"""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2] / "src"))
sys.path.insert(0, str(HERE))

from bench import VllmSide, make_scheduler, step_of, vllm_config  # noqa: E402

# isort: split
import vllm  # noqa: E402
from cases import Case  # noqa: E402
from harness import Step, serve  # noqa: E402
from vllm.envs import enable_envs_cache  # noqa: E402
from vllm.v1.core.sched.output import SchedulerOutput  # noqa: E402
from workloads import FAKE_TOKEN, Work  # noqa: E402

from paceline.integrations.vllm import PacelineScheduler  # noqa: E402


class PluginSide(VllmSide):
    """The same calls, with our class."""

    def __init__(self, case: Case, work: list[Work]) -> None:
        super().__init__(case, work)
        self._scheduler = make_scheduler(vllm_config(case), case, PacelineScheduler)

    def fake(self, plan: SchedulerOutput) -> Step:
        """A token for every request whose known tokens are all computed by this step, as far as
        the message itself says: our scheduler keeps its counters in columns."""
        later = plan.scheduled_cached_reqs
        known = {new.req_id: len(new.prompt_token_ids) for new in plan.scheduled_new_reqs}
        computed = {new.req_id: new.num_computed_tokens for new in plan.scheduled_new_reqs}
        columns = later.req_ids, later.num_output_tokens, later.num_computed_tokens
        for name, outputs, before in zip(*columns, strict=True):
            known[name] = len(self._requests[int(name)].prompt_token_ids) + outputs
            computed[name] = before
        sampled = [
            [FAKE_TOKEN] if computed[name] + tokens >= known[name] else []
            for name, tokens in plan.num_scheduled_tokens.items()
        ]
        return step_of(plan, sampled)


if __name__ == "__main__":
    enable_envs_cache()
    serve(PluginSide, {"plugin": f"paceline in vLLM {vllm.__version__}"})
