"""Workers and clients get of our class, field by field, what they get of vLLM's own."""

from collections import deque
from typing import Any

import numpy as np
import pytest
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import LogprobsLists, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from paceline.integrations.vllm import PacelineScheduler
from tests.recorded.cases import Case
from tests.recorded.record_vllm import VllmEngine, make_scheduler
from tests.recorded.test_against_vllm import CASES

CHOSEN = {name: case for name, case in CASES.items() if int(name[-2:]) % 2 == 0}
# With steps in flight vLLM keeps the sample of a request that it preempts, and ours drops it.
UNHURRIED = [name for name in CHOSEN if not name.startswith("pressure")]
# vLLM counts a lookup again in each step in which the request does not fit.
BLOCKED = ("pressure", "whole-prefill")
CACHED = "req_ids resumed_req_ids all_token_ids new_block_ids num_computed_tokens num_output_tokens"
NEW = "req_id prompt_token_ids block_ids num_computed_tokens sampling_params lora_request"
STEP = (
    "num_scheduled_tokens total_num_scheduled_tokens scheduled_spec_decode_tokens finished_req_ids "
    "preempted_req_ids pending_structured_output_tokens"
)
OUTPUT = "request_id new_token_ids finish_reason stop_reason num_cached_tokens"
STATS = "num_running_reqs num_waiting_reqs"


def fields(record: Any, names: str) -> dict[str, Any]:
    return {name: getattr(record, name) for name in names.split()}


def message(step: Any) -> dict[str, Any]:
    return {
        **fields(step, STEP),
        "order": list(step.num_scheduled_tokens),
        "new": [fields(one, NEW) for one in step.scheduled_new_reqs],
        "cached": fields(step.scheduled_cached_reqs, CACHED),
    }


class Side(VllmEngine):
    """One scheduler, with `depth` steps in flight. Statistics are on."""

    def __init__(self, kind: Any, case: Case) -> None:
        self._kind = kind
        super().__init__(case.settings)
        self.scheduler = self._scheduler
        self.flight: deque[Any] = deque()
        self.sampled: dict[str, int] = {}

    def _make(self, settings: Any) -> Any:
        return make_scheduler(self._kind, settings, log_stats=True)

    def schedule(self) -> dict[str, Any]:
        step = self.scheduler.schedule()
        if step.num_scheduled_tokens:
            self.flight.append(step)
        return message(step)

    def update(self, case: Case) -> dict[str, Any]:
        step = self.flight.popleft()
        names = list(step.num_scheduled_tokens)
        output = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: row for row, name in enumerate(names)},
            sampled_token_ids=[self.tokens(step, name, case) for name in names],
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
        )
        (delivery,) = self.scheduler.update_from_output(step, output).values()
        stats = delivery.scheduler_stats
        return {
            "outputs": [fields(one, OUTPUT) for one in delivery.outputs],
            "usage": pytest.approx(stats.kv_cache_usage),
            "lookups": None if case.name.startswith(BLOCKED) else stats.prefix_cache_stats,
            **fields(stats, STATS),
        }

    def tokens(self, step: Any, name: str, case: Case) -> list[int]:
        """What the model samples, if the step computes all that is known."""
        later = step.scheduled_cached_reqs
        index = int(name[1:])
        if name in later.req_ids:
            row = later.req_ids.index(name)
            known = len(case.asks[index].prompt) + later.num_output_tokens[row]
            end = later.num_computed_tokens[row] + step.num_scheduled_tokens[name]
        else:
            (new,) = [one for one in step.scheduled_new_reqs if one.req_id == name]
            known = len(new.prompt_token_ids)
            end = new.num_computed_tokens + step.num_scheduled_tokens[name]
        if end < known:
            return []
        position = self.sampled[name] = self.sampled.get(name, -1) + 1
        return [case.sampled(index, position)]


def compare(case: Case, theirs: Any, depth: int) -> None:
    sides = [Side(theirs, case), Side(PacelineScheduler, case)]
    coming = list(case.asks)
    for at in range(2_000):
        here = [ask for ask in coming if ask.arrival_step <= at]
        coming = coming[len(here) :]
        gone = [ask.id for ask in case.asks if ask.abort_step == at]
        for side in sides:
            for ask in here:
                side.submit(ask, float(at))
            side.scheduler.finish_requests(gone, RequestStatus.FINISHED_ABORTED)
        expected, got = [side.schedule() for side in sides]
        assert got == expected, f"step {at}"
        if len(sides[0].flight) >= depth or (not got["order"] and sides[0].flight):
            expected, got = [side.update(case) for side in sides]
            assert got == expected, f"results at step {at}"
        counts = {side.scheduler.get_num_unfinished_requests() for side in sides}
        if counts == {0} and not coming and not sides[0].flight:
            return
    raise AssertionError("it does not end")


@pytest.mark.parametrize("name", CHOSEN)
def test_messages_of_each_step_are_the_same(name: str) -> None:
    compare(CASES[name], Scheduler, depth=1)


@pytest.mark.parametrize("name", UNHURRIED)
def test_messages_are_the_same_with_two_steps_in_flight(name: str) -> None:
    compare(CASES[name], AsyncScheduler, depth=2)


def test_a_request_is_left_as_vllm_leaves_it() -> None:
    """What tools read from requests of vLLM that have ended."""
    case = CASES["stops-00"]
    left: list[list[dict[str, Any]]] = []
    for kind in (Scheduler, PacelineScheduler):
        side = Side(kind, case)
        for ask in case.asks:
            side.submit(ask, 0.0)
        requests = list(side.scheduler.requests.values())
        while side.scheduler.get_num_unfinished_requests():
            side.schedule()
            side.update(case)
        names = "request_id status stop_reason num_cached_tokens num_preemptions num_tokens"
        left.append([fields(one, names) | {"out": list(one.output_token_ids)} for one in requests])
    assert left[0] == left[1]


def ask_for_more(scheduler: Any) -> list[dict[int, Any]]:
    """Two clients whose requests want more than tokens; what each gets of two steps."""
    wishes = [{"logprobs": 1}, {"prompt_logprobs": 1}, {}]
    for number, wish in enumerate(wishes):
        request = Request(
            request_id=str(number),
            prompt_token_ids=[5, 6, 7 + number],
            sampling_params=SamplingParams(max_tokens=2, detokenize=False, **wish),
            pooling_params=None,
            eos_token_id=None,
            client_index=number % 2,
            arrival_time=float(number),
            trace_headers={"traceparent": "a"} if number == 2 else None,
        )
        scheduler.add_request(request)
    got: list[dict[int, Any]] = []
    for _ in wishes[:2]:
        step = scheduler.schedule()
        names = list(step.num_scheduled_tokens)
        scores = np.arange(6.0).reshape(3, 2)
        result = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: row for row, name in enumerate(names)},
            sampled_token_ids=[[int(name) + 10] for name in names],
            logprobs=LogprobsLists(scores.astype(int), scores, np.arange(3)),
            prompt_logprobs_dict={"1": "scores of the prompt"} if not got else {},
            pooler_output=[],
            num_nans_in_logits={"0": 1},
        )
        delivered = scheduler.update_from_output(step, result)
        got.append({client: plain(one) for client, one in delivered.items()})
    return got


def plain(delivered: Any) -> dict[str, Any]:
    names = f"{OUTPUT} trace_headers num_nans_in_logits new_prompt_logprobs_tensors"
    outputs = [
        fields(one, names)
        | {"events": [event.type for event in one.events or []]}
        | {"scores": one.new_logprobs and [column.tolist() for column in one.new_logprobs[:3]]}
        for one in delivered.outputs
    ]
    return {
        "outputs": outputs,
        "finished": delivered.finished_requests,
        "has stats": delivered.scheduler_stats is not None,
    }


def test_what_some_requests_want_besides_tokens_reaches_their_client() -> None:
    settings = CASES["plain-00"].settings | {"enable_prefix_caching": False}
    expected, got = (
        ask_for_more(make_scheduler(kind, settings, log_stats=True, include_finished_set=True))
        for kind in (Scheduler, PacelineScheduler)
    )
    assert got == expected
    assert got[0][0]["outputs"][0]["events"], "queued and scheduled"
    assert got[0][0]["outputs"][0]["scores"]
