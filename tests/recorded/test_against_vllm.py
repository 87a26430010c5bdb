"""Our scheduler decides every step of every recorded case as vLLM 0.13.0 did."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from functools import cache
from itertools import islice, zip_longest
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline import Request, Scheduler, StepResult
from paceline.core.plan import Plan
from tests.recorded.cases import Ask, Settings, Step, cases, play

RECORDING = Path(__file__).with_name("vllm_0_13_0.json.gz")
DECISIONS = (
    "at",
    "finished",
    "aborted",
    "preempted",
    "new",
    "resumed",
    "cached",
    "tokens",
    "ended",
)
UNORDERED = ("finished", "preempted")
CASES = {case.name: case for case in cases()}
EVERY_CASE = pytest.mark.parametrize("name", CASES)


def request_of(ask: Ask, now: float) -> Request:
    return Request(
        id=ask.id,
        prompt=np.array(ask.prompt, np.int32),
        max_tokens=ask.max_tokens,
        min_tokens=ask.min_tokens,
        eos_token_ids=() if ask.eos_token_id is None else (ask.eos_token_id,),
        ignore_eos=ask.ignore_eos,
        stop_token_ids=ask.stop_token_ids,
        priority=ask.priority,
        arrival=now,
    )


class OurEngine:
    """Our scheduler, with the settings that make it vLLM 0.13.0's equal."""

    def __init__(self, settings: Settings) -> None:
        self._scheduler = Scheduler.create(
            **settings,
            reserve_full_prompt=False,
            watermark=0.0,
            free_order="lru",
            ageing_s=inf,
        )
        self._plan: Plan | None = None

    def submit(self, ask: Ask, now: float) -> None:
        self._scheduler.submit(request_of(ask, now), now=now)

    def abort(self, request_id: str, now: float) -> str:
        state = self._scheduler.snapshot()["requests"][request_id]["state"]
        assert self._scheduler.abort(request_id, now=now)
        return state

    def plan(self, step: Step, now: float) -> list[str]:
        plan = self._plan = self._scheduler.plan(now=now)
        told = plan.to_dict()
        step.tokens = told["tokens"]
        step.new = told["new"]
        step.resumed = told["resumed"]
        step.preempted = told["preempted"]
        step.finished = told["finished"]
        step.cached = {admitted.request.id: admitted.computed for admitted in plan.admitted}
        step.blocks = {name: only_group for name, (only_group,) in told["blocks"].items()}
        return plan.rows.request_id[plan.rows.samples].tolist()

    def commit(self, sampled: dict[str, int], now: float) -> dict[str, str]:
        assert self._plan is not None
        result = StepResult.of(self._plan, {name: [token] for name, token in sampled.items()})
        outputs = self._scheduler.commit(self._plan, result, now=now).to_dict()
        ends = {name: output["finish"] for name, output in outputs.items()}
        return {name: finish for name, finish in ends.items() if finish in ("stop", "length")}


@cache
def recording() -> dict[str, Any]:
    return json.loads(gzip.decompress(RECORDING.read_bytes()))


@cache
def recorded_steps(name: str) -> list[Step]:
    return [Step(**step) for step in recording()["cases"][name]["steps"]]


@cache
def our_steps(name: str) -> list[Step]:
    """Cut off one step after the recording ends, lest a difference make a run endless."""
    case = CASES[name]
    steps = play(case, OurEngine(case.settings))
    return list(islice(steps, len(recorded_steps(name)) + 1))


def part(step: Step | None, field: str) -> Any:
    """One field of a step; who is preempted or has finished counts, not in which order."""
    value = getattr(step, field, None)
    return sorted(value) if field in UNORDERED and value else value


def assert_same(name: str, fields: tuple[str, ...]) -> None:
    """Fails at the first step of a case in which one of `fields` differs."""
    pairs = zip_longest(recorded_steps(name), our_steps(name))
    for step, (theirs, ours) in enumerate(pairs):
        for field in fields:
            expected, got = part(theirs, field), part(ours, field)
            if expected != got:
                difference = f"{name}, step {step}, {field}:\n  vLLM {expected}\n  ours {got}"
                pytest.fail(f"{difference}\n  with {CASES[name].settings}", pytrace=False)


@EVERY_CASE
def test_every_step_is_decided_as_vllm_decided_it(name: str) -> None:
    assert_same(name, DECISIONS)


@EVERY_CASE
def test_every_step_takes_the_blocks_that_vllm_took(name: str) -> None:
    assert_same(name, ("blocks",))


def test_the_recording_is_of_these_cases() -> None:
    recorded = {name: case["fingerprint"] for name, case in recording()["cases"].items()}
    assert recorded == {name: case.fingerprint() for name, case in CASES.items()}, "record again"
    assert recording()["vllm"] == "0.13.0"


def test_every_case_can_run() -> None:
    """No request is too long for the model or, alone, for the pool."""
    for case in CASES.values():
        length, settings = case.settings["max_model_len"], case.settings
        for ask in case.asks:
            assert len(ask.prompt) < length, case.name
            blocks = -(-min(ask.longest, length) // settings["block_size"])
            assert blocks <= settings["num_blocks"], case.name
            assert not ask.min_tokens or ask.longest <= length, case.name


def test_the_recording_is_not_trivial() -> None:
    seen: Counter[str] = Counter()
    for name, case in CASES.items():
        seen["requests"] += len(case.asks)
        for step in recorded_steps(name):
            seen["steps"] += 1
            seen["preempted"] += len(step.preempted)
            seen["several preempted"] += len(step.preempted) > 1
            seen["hits"] += sum(tokens > 0 for tokens in step.cached.values())
            seen["hits of resumed"] += sum(step.cached[again] > 0 for again in step.resumed)
            seen.update(f"aborted when {state}" for state in step.aborted.values())
            seen.update(f"ended by {finish}" for finish in step.ended.values())
    least = {
        "requests": 1500,
        "steps": 8000,
        "preempted": 500,
        "several preempted": 40,
        "hits": 700,
        "hits of resumed": 200,
        "aborted when WAITING": 20,
        "aborted when RUNNING": 30,
        "aborted when PREEMPTED": 3,
        "ended by stop": 150,
        "ended by length": 1000,
    }
    assert not {what: seen[what] for what, number in least.items() if seen[what] < number}
    ends = sum(number for what, number in seen.items() if what.startswith(("ended", "aborted")))
    assert ends == seen["requests"]
