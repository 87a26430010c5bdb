"""What a front end does, in a timeline."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

from paceline.core.request import Finish
from paceline.engine.api import GenerationRequest, SamplingParams
from paceline.engine.frontend.frontend import Frontend
from paceline.engine.streaming import StreamingEngine
from paceline.engine.trace.frontend_trace import TracedFrontend, front_end
from paceline.engine.trace.trace_file import TraceTarget
from tests.engine.frontend.harness import Harness
from tests.engine.support import components
from tests.engine.trace.timeline import Timeline

SHORT = SamplingParams(max_tokens=5, ignore_eos=True)


def test_a_front_end_that_is_not_traced_is_a_plain_one() -> None:
    assert front_end(TraceTarget()) is Frontend


def test_prompts_and_deliveries_are_slices(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    harness = Harness(replace(components(), trace=TraceTarget(str(path))))
    assert isinstance(harness.frontend, TracedFrontend)
    harness.begin(GenerationRequest(prompt="the quick fox", params=SHORT))
    harness.begin(GenerationRequest(messages=[{"role": "user", "content": "a"}], params=SHORT))
    harness.run()
    harness.engine.close()
    harness.frontend.end_all(Finish.ABORT)
    found = Timeline(path)
    assert {*found.processes.values()} == {"engine"}
    tracks = found.tracks()
    assert {*tracks} == {"host", "device", "front end"}
    values: dict[str, list[dict[str, Any]]] = {}
    for one in tracks["front end"]:
        values.setdefault(one["name"], []).append(one["args"])
    assert values["tokenize"][0]["characters"] == len("the quick fox")
    assert all(one["tokens"] > 0 for one in values["tokenize"])
    assert [one["messages"] for one in values["template"]] == [1]
    assert sum(one["tokens"] for one in values["deliver"]) == 10
    assert sum(one["ended"] for one in values["deliver"]) == 2


def test_long_prompts_are_read_on_tracks_of_their_own(tmp_path: Path) -> None:
    path, text = tmp_path / "trace.json", "hello " * 60

    async def main() -> None:
        made = replace(components(), trace=TraceTarget(str(path)))
        async with StreamingEngine.of(made) as engine:
            await asyncio.gather(
                *(engine.tokenized(GenerationRequest(prompt=text)) for _ in range(3))
            )

    asyncio.run(main())
    tracks = Timeline(path).tracks()
    threads = [name for name in tracks if name.startswith("long-work")]
    assert threads
    assert sum(one["args"]["texts"] for name in threads for one in tracks[name]) == 3
