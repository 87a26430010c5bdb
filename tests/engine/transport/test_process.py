"""The engine in another process: the same answers, and a clear end when the process is gone."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest

from paceline.core.errors import ConfigError, QueueFull, RequestError
from paceline.core.multimodal import ImageInput
from paceline.core.system.host import CHOSEN
from paceline.engine.api import AsyncEngine, GenerationRequest, SamplingParams
from paceline.engine.components import factory_named
from paceline.engine.frontend.frontend import Frontend
from paceline.engine.frontend.stream import DeltaBuffer
from paceline.engine.loop.messages import EngineFailed, Question
from paceline.engine.settings import EngineSettings, OnFailure
from paceline.engine.streaming import StreamingEngine
from paceline.engine.transport import child_process, process, wire
from paceline.engine.transport.child_process import ProcessPlace, begin_core, core_process
from paceline.engine.transport.process import ProcessCore
from paceline.text.chat_template import ChatTemplate
from tests.engine.frontend.harness import one_of_three_stops
from tests.engine.support import ask, build, expected, expected_text, tokenizer

Use = Callable[[StreamingEngine, ProcessCore], Awaitable[None]]


def with_process(
    use: Use,
    build: str = "build",
    stall_s: float = 60.0,
    on_failure: OnFailure = "continue",
    **settings: Any,
) -> None:
    engine = EngineSettings(stall_s=stall_s, on_failure=on_failure)
    core = ProcessCore(f"tests.engine.support:{build}", "oracle", settings, engine)
    assert core.ready().block_size == 4
    frontend = Frontend(tokenizer(), ChatTemplate.of(tokenizer()), monotonic)

    async def run() -> None:
        engine = StreamingEngine(core, frontend)
        checked: AsyncEngine = engine
        try:
            await use(engine, core)
        finally:
            await checked.shutdown()

    asyncio.run(asyncio.wait_for(run(), 50))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_it_starts_with_a_limit_of_spinning() -> None:
    async def use(_engine: StreamingEngine, core: ProcessCore) -> None:
        given = Path(f"/proc/{core.pid}/environ").read_text().split("\0")
        assert {line.partition("=")[0] for line in given} & set(CHOSEN)

    with_process(use)


def test_a_process_that_was_begun_early_is_the_next_one_that_may_run_there() -> None:
    begin_core("tests.engine.support:build")
    (early,) = child_process._begun

    async def use(engine: StreamingEngine, core: ProcessCore) -> None:
        assert core.pid == early.pid
        assert (await engine.snapshot())["total_blocks"]

    with_process(use)
    begin_core("tests.engine.support:build")
    (early,) = child_process._begun
    pinned = core_process(ProcessPlace(tuple(os.sched_getaffinity(0))[:1]))
    assert (early.alive, child_process._begun) == (False, [])
    pinned.kill()
    pinned.wait(5.0)
    pinned.close()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_process_that_was_begun_early_does_not_see_interrupts_and_ends_before_its_parent() -> (
    None
):
    code = (
        "import os, signal\n"
        "from paceline.engine.transport.child_process import _begun, begin_core\n"
        "begin_core('tests.engine.support:build')\n"
        "print(_begun[0].pid, _begun[0]._folder.name, flush=True)\n"
        "for _ in range(50):\n"
        "    os.kill(_begun[0].pid, signal.SIGINT)\n"
        "    __import__('time').sleep(0.02)\n"
        "assert _begun[0].alive\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=50
    )
    pid, folder = ended.stdout.split()
    assert not ended.stderr
    assert (
        not Path("/proc", pid, "cmdline").exists() or not Path("/proc", pid, "cmdline").read_bytes()
    )
    assert not Path(folder).exists()


async def nothing_left(engine: StreamingEngine) -> None:
    while (state := await engine.snapshot())["requests"]:
        await asyncio.sleep(0.001)
    assert state["free_blocks"] == state["total_blocks"]


def test_answers_are_those_of_the_reference() -> None:
    async def use(engine: StreamingEngine, _core: ProcessCore) -> None:
        params = [SamplingParams(max_tokens=12, seed=seed, logprobs=2) for seed in range(12)]
        generations = [GenerationRequest(prompt="hello", params=one) for one in params]
        outputs = await asyncio.gather(*(engine.generate(one).whole() for one in generations))
        for one, output in zip(params, outputs, strict=True):
            ids, reason = expected("hello", one)
            (answer,) = output.outputs
            assert answer.text == expected_text(ids, reason)
            assert answer.logprobs is not None
            assert [each.chosen.token_id for each in answer.logprobs] == ids
            assert all(len(each.top) == 2 for each in answer.logprobs)
            assert output.timings.total_s > 0
        best = await engine.generate(ask("hello", n=2, best_of=3, seed=1, max_tokens=5)).whole()
        assert len(best.outputs) == 2
        biased = ask("a", logit_bias={5: 1.0}, allowed_token_ids=[5, 6], stop_token_ids=[7])
        assert (await engine.generate(biased).whole()).outputs[0].finish_reason
        await questions(engine)

    with_process(use, depth=2)


async def questions(engine: StreamingEngine) -> None:
    with pytest.raises(RequestError, match="max_model_len"):
        await engine.generate(ask("hello " * 400)).whole()
    with pytest.raises(RequestError, match="nobody"):
        await engine.explain("nobody")
    stream = engine.generate(ask("hello", "a", max_tokens=200, ignore_eos=True))
    async for _ in stream:
        break
    await stream.aclose()
    await nothing_left(engine)
    assert "a" in await engine.explain("a")
    await engine.pause("all")
    await engine.resume()
    assert (await engine.stats()).cache_config["block_size"] == 4
    assert await engine.reset_prefix_cache()
    assert engine.healthy() is None
    await engine.drain()
    with pytest.raises(QueueFull, match="draining"):
        await engine.generate(ask("hello")).whole()


def test_a_killed_process_fails_everybody_and_is_red() -> None:
    async def use(engine: StreamingEngine, core: ProcessCore) -> None:
        await engine.pause("all")
        streams = [engine.generate(ask("hello", max_tokens=200)) for _ in range(5)]
        await engine.snapshot()
        os.kill(core.pid, signal.SIGKILL)
        await asyncio.sleep(0.01)
        for _ in range(1000):  # nobody is held up by a process that is gone, noticed or not
            core.abort("nobody")
        for stream in streams:
            output = await stream.whole()
            assert output.outputs[0].finish_reason == "error"
            assert "process has died with code -9" in output.error
        assert "died" in (engine.healthy() or "")
        with pytest.raises(EngineFailed, match="died"):
            engine.generate(ask("hello"))
        with pytest.raises(EngineFailed, match="died"):
            await engine.snapshot()

    with_process(use)


def test_a_question_that_meets_the_death_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    made = wire.NumberedQuestion

    async def use(_engine: StreamingEngine, core: ProcessCore) -> None:
        def late(number: int, question: Question) -> wire.NumberedQuestion:
            os.kill(core.pid, signal.SIGKILL)
            while core._questions:  # until the reader has failed this one
                sleep(0.001)
            return made(number, question)

        monkeypatch.setattr(wire, "NumberedQuestion", late)
        with pytest.raises(EngineFailed, match="died"):
            core.ask(Question("snapshot"))
        monkeypatch.undo()

    with_process(use)


def test_a_mistake_of_ours_is_told_with_its_reason(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    async def use(engine: StreamingEngine, _core: ProcessCore) -> None:
        output = await engine.generate(ask("hello", max_tokens=200)).whole()
        assert "AssertionError: ours" in output.error
        assert "ours" in (engine.healthy() or "")

    with_process(use, "build_mistaken", tokens=4)
    (logged,) = [one for one in caplog.records if "Traceback" in one.getMessage()]
    assert (
        logged.name == "paceline.engine.transport.process_main"
    )  # by its parent, who writes it down
    assert logged.getMessage().startswith("the engine has died\n")
    assert "Traceback" not in capfd.readouterr().err


def test_a_request_that_cannot_be_written_down_is_not_waited_for() -> None:
    async def use(engine: StreamingEngine, core: ProcessCore) -> None:
        request = engine._frontend.begin(GenerationRequest(prompt="hello"), DeltaBuffer())
        object.__setattr__(request, "priority", 10**30)
        with pytest.raises(OverflowError):
            core.submit(request)
        engine._frontend.drop(request.id)
        await asyncio.sleep(0.05)
        assert core.healthy() is None

    with_process(use, stall_s=0.01)


@pytest.mark.parametrize("field", ["adapter", "images"])
def test_what_the_runner_cannot_do_is_refused_by_its_process(field: str) -> None:
    value = {"adapter": "mine", "images": (ImageInput("cat", 0, 1),)}[field]

    async def use(engine: StreamingEngine, _core: ProcessCore) -> None:
        begin = engine._frontend.begin
        changed = lambda *given, **named: replace(begin(*given, **named), **{field: value})
        engine._frontend.begin = changed  # type: ignore[method-assign]
        with pytest.raises(RequestError, match=f"remove `{field}`"):
            await engine.generate(ask("hello")).whole()

    with_process(use)


def test_a_failed_step_or_a_full_queue_ends_requests_and_not_the_engine() -> None:
    async def use(engine: StreamingEngine, _core: ProcessCore) -> None:
        output = await engine.generate(ask("hello", max_tokens=200)).whole()
        assert "step 4 failed" in output.error
        assert engine.healthy() is None
        again = await engine.generate(ask("hello", max_tokens=3, ignore_eos=True)).whole()
        assert again.outputs[0].finish_reason == "length"
        await engine.pause("all")
        streams = [engine.generate(ask("hello", max_tokens=2)) for _ in range(40)]
        await engine.resume()
        ends = await asyncio.gather(*(one.whole() for one in streams), return_exceptions=True)
        assert {type(end).__name__ for end in ends} == {"QueueFull", "RequestOutput"}
        await nothing_left(engine)

    with_process(use, "build_breaking", step=4, max_num_queued_reqs=5)


def test_an_engine_that_stops_after_a_failed_step_takes_its_process_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also if its device cannot be closed."""
    monkeypatch.setattr(process, "CLOSE_S", 0.2)

    async def use(engine: StreamingEngine, core: ProcessCore) -> None:
        output = await engine.generate(ask("hello", max_tokens=200)).whole()
        assert "step 4 failed" in output.error
        assert "step 4 failed" in await engine.gone()
        assert "step 4 failed" in (engine.healthy() or "")
        while runs(core.pid):
            await asyncio.sleep(0.01)

    with_process(use, "build_breaking", on_failure="stop", step=4, closes=False)


def test_a_death_is_known_before_the_process_is_gone() -> None:
    """Its requests must not wait for a device that cannot be closed."""

    async def use(engine: StreamingEngine, core: ProcessCore) -> None:
        await engine.generate(ask("hello", max_tokens=200)).whole()
        assert "step 4 failed" in await engine.gone()
        assert runs(core.pid)
        os.kill(core.pid, signal.SIGKILL)

    with_process(use, "build_breaking", on_failure="stop", step=4, closes=False)


def test_a_stuck_device_is_seen_from_outside() -> None:
    async def use(engine: StreamingEngine, core: ProcessCore) -> None:
        stream = engine.generate(ask("hello", max_tokens=200))
        while engine.healthy() is None:
            await asyncio.sleep(0.01)
        assert "no step has ended" in (engine.healthy() or "")
        os.kill(core.pid, signal.SIGKILL)
        assert "died" in (await stream.whole()).error

    with_process(use, "build_stuck", stall_s=0.2, step=3)


def test_a_process_that_cannot_be_built_says_why() -> None:
    core = ProcessCore("tests.engine.support:build", "oracle", {"blocksize": 4})
    with pytest.raises(ConfigError, match="blocksize"):
        core.ready()
    assert not Path(core._process._folder.name).exists()


def test_one_choice_that_stops_leaves_the_others_alone() -> None:
    params, stop = one_of_three_stops()

    async def use(engine: StreamingEngine, core: ProcessCore) -> None:
        one = GenerationRequest(prompt="hello", params=replace(params, stop=stop))
        output = await engine.generate(one).whole()
        assert [one.finish_reason for one in output.outputs] == ["length", "stop", "length"]
        await engine.pause("all")
        stream = engine.generate(ask("hello", max_tokens=3))
        await asyncio.sleep(0.05)
        assert core.healthy() is None  # a pause is no stall
        await engine.resume()
        await stream.whole()

    with_process(use, stall_s=0.04)


@pytest.mark.parametrize("name", ["tests.nowhere:build", "tests.engine.support:nothing", "build"])
def test_a_factory_is_found_by_name_or_not(name: str) -> None:
    assert factory_named("tests.engine.support:build") is build
    with pytest.raises(ConfigError, match=name):
        factory_named(name)


ORPHAN = """
import os, signal, sys
from paceline.engine.transport.process import ProcessCore
core = ProcessCore("tests.engine.support:build", "oracle", {})
print(core.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_process_does_not_outlive_its_parent() -> None:
    path = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    parent = [sys.executable, "-c", ORPHAN]
    said = subprocess.run(parent, env=path, stdout=subprocess.PIPE, check=False).stdout
    child = int(said)
    for _ in range(1000):
        if not runs(child):
            return
        sleep(0.01)
    raise AssertionError("it still runs")


def runs(pid: int) -> bool:
    """Orphans that nobody has asked about stay on as zombies."""
    try:
        os.kill(pid, 0)
        state = subprocess.run(
            ["ps", "-o", "stat=", "-p", str(pid)], stdout=subprocess.PIPE, check=False
        ).stdout
    except (ProcessLookupError, FileNotFoundError):
        return False
    return bool(state.strip()) and not state.startswith(b"Z")
