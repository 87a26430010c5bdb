"""A core that dies is followed by another, so often and no more."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from errno import ENOMEM
from threading import Event
from time import monotonic
from typing import Any

import pytest

from paceline.core.errors import ConfigError
from paceline.engine.arguments import load_question
from paceline.engine.frontend.frontend import Frontend
from paceline.engine.loop.messages import Capacity, Delivery, EngineFailed, Question
from paceline.engine.loop.ports import Receiver
from paceline.engine.settings import CoreSettings
from paceline.engine.streaming import StreamingEngine
from paceline.engine.transport import restart as restarting
from paceline.engine.transport.process import ProcessCore
from paceline.engine.transport.restart import RestartingCore
from paceline.text.chat_template import ChatTemplate
from tests.engine.support import ask, tokenizer

Use = Callable[[StreamingEngine, RestartingCore], Awaitable[None]]
SOUND = "tests.engine.support:build"
NO_MEMORY = "no memory for a process"


def with_core(use: Use, factories: list[str], **settings: Any) -> None:
    """The first core is built by the first factory, and so on; the last one goes on."""

    def make() -> ProcessCore:
        factory = factories.pop(0) if len(factories) > 1 else factories[0]
        if factory == NO_MEMORY:
            raise OSError(ENOMEM, "Cannot allocate memory")
        return ProcessCore(factory, "oracle", {})

    core = RestartingCore(make, CoreSettings(**settings))
    core.ready()
    frontend = Frontend(tokenizer(), ChatTemplate.of(tokenizer()), monotonic)

    async def run() -> None:
        engine = StreamingEngine(core, frontend)
        try:
            await use(engine, core)
        finally:
            await engine.shutdown()

    asyncio.run(asyncio.wait_for(run(), 50))


async def killed(engine: StreamingEngine, core: RestartingCore) -> str:
    """Kill the process under a request; what the request is told."""
    await engine.pause("all")
    stream = engine.generate(ask("hello", max_tokens=200))
    await engine.snapshot()
    os.kill(core.pid, signal.SIGKILL)
    output = await stream.whole()
    assert output.outputs[0].finish_reason == "error"
    return output.error


async def until_healthy(engine: StreamingEngine) -> None:
    while engine.healthy() is not None:
        await asyncio.sleep(0.005)


def test_another_takes_its_place_and_the_third_crash_is_the_end() -> None:
    async def use(engine: StreamingEngine, core: RestartingCore) -> None:
        for crash in (1, 2):
            assert "process has died with code -9" in await killed(engine, core)
            assert "is being restarted" in (engine.healthy() or "")
            with pytest.raises(EngineFailed, match="being restarted"):
                engine.generate(ask("hello"))
            await until_healthy(engine)
            short = ask("hello", max_tokens=3, ignore_eos=True)
            assert (await engine.generate(short).whole()).usage.completion_tokens == 3
            assert (await engine.stats()).crashes == crash
        assert "code -9" in await killed(engine, core)
        assert "code -9" in await engine.gone()
        assert "restarted" not in (engine.healthy() or "restarted")
        report = await engine.stats()  # of what was known before
        assert report.crashes == 3
        assert report.cache_config["block_size"] == 4

    with_core(use, [SOUND], core_restarts=2)


def test_without_restarts_the_first_crash_is_the_end() -> None:
    async def use(engine: StreamingEngine, core: RestartingCore) -> None:
        assert "code -9" in await killed(engine, core)
        assert "code -9" in await engine.gone()

    with_core(use, [SOUND], on_core_crash="exit")


def test_one_that_cannot_be_built_again_counts_as_well() -> None:
    async def use(engine: StreamingEngine, core: RestartingCore) -> None:
        await killed(engine, core)
        assert "nothing" in await engine.gone()
        assert "nothing" in (engine.healthy() or "")

    with_core(use, [SOUND, "tests.engine.support:nothing"], core_restarts=2)


def test_one_for_which_there_is_no_memory_counts_as_well() -> None:
    async def use(engine: StreamingEngine, core: RestartingCore) -> None:
        await killed(engine, core)
        assert "Cannot allocate memory" in await engine.gone()

    with_core(use, [SOUND, NO_MEMORY], core_restarts=2)


def test_after_a_process_that_could_not_be_made_another_one_is() -> None:
    async def use(engine: StreamingEngine, core: RestartingCore) -> None:
        await killed(engine, core)
        await until_healthy(engine)
        output = await engine.generate(ask("hello", max_tokens=3)).whole()
        assert output.error == ""

    with_core(use, [SOUND, NO_MEMORY, SOUND], core_restarts=2)


class Unborn:
    """A core that is gone before anyone hears of it."""

    def ready(self) -> Capacity:
        return Capacity(8, 4, 2, 8, 64)

    def start(self, receiver: Receiver) -> None:
        receiver.died("gone at once", for_good=True)

    def healthy(self) -> str | None:
        return "gone at once"

    def close(self) -> None:
        pass


def test_one_that_dies_before_it_is_started_counts_as_well() -> None:
    async def use(engine: StreamingEngine, core: RestartingCore) -> None:
        core._make = Unborn  # type: ignore[assignment]
        await killed(engine, core)
        assert await engine.gone() == "gone at once"

    with_core(use, [SOUND], core_restarts=2)


def test_closing_does_not_wait_for_one_that_is_being_built() -> None:
    async def use(engine: StreamingEngine, core: RestartingCore) -> None:
        await killed(engine, core)
        assert "being" in (engine.healthy() or "")

    with_core(use, [SOUND, "tests.engine.support:build_for_ever"])


class Puppet:
    """A core that dies when it is told to, and has no process."""

    def __init__(self) -> None:
        self.receiver: Receiver | None = None
        self.aborted: list[tuple[str, int | None]] = []
        self.asked: list[Question] = []
        self.closed = Event()

    def ready(self) -> Capacity:
        return Capacity(8, 4, 2, 8, 64)

    def start(self, receiver: Receiver) -> None:
        self.receiver = receiver

    def abort(self, request_id: str, child: int | None = None) -> None:
        self.aborted.append((request_id, child))

    def ask(self, question: Question) -> Future[Any]:
        self.asked.append(question)
        answer: Future[Any] = Future()
        listed = [{"name": "a", "path": "/old"}] if question.verb == "adapters" else None
        answer.set_result(listed)
        return answer

    def healthy(self) -> str | None:
        return None

    def die(self) -> None:
        assert self.receiver is not None
        self.receiver.died("gone", for_good=True)

    def close(self) -> None:
        self.closed.set()


class Puppets:
    """Cores one after the other, and what a receiver hears of them."""

    def __init__(self, **settings: Any) -> None:
        self.made: list[Puppet] = []
        self.deaths: list[tuple[str, bool]] = []
        self.returns = 0
        self.door = Event()  # nothing is built while it is shut
        self.door.set()
        self.problem = ""
        self.core = RestartingCore(self.make, CoreSettings(**settings))  # type: ignore[arg-type]
        self.core.start(self)

    def make(self) -> Puppet:
        self.door.wait()
        if self.problem:
            raise ConfigError(self.problem)
        self.made.append(Puppet())
        return self.made[-1]

    def deliver(self, delivery: Delivery) -> None:
        pass

    def died(self, reason: str, for_good: bool) -> None:
        self.deaths.append((reason, for_good))

    def health_changed(self) -> None:
        self.returns += 1

    def replaced(self) -> None:
        assert self.core._replacing is not None
        self.core._replacing.join()


def test_one_that_died_is_closed_and_the_next_takes_its_place(
    caplog: pytest.LogCaptureFixture,
) -> None:
    puppets = Puppets()
    puppets.made[0].die()
    puppets.replaced()
    assert puppets.deaths == [("gone", False)]
    assert puppets.returns == 1
    assert puppets.made[0].closed.is_set()
    assert puppets.core.healthy() is None
    assert [one.levelname for one in caplog.records] == ["ERROR", "WARNING"]
    assert [one.getMessage() for one in caplog.records] == ["gone", "the engine has been restarted"]
    puppets.core.abort("a", 1)
    assert puppets.made[1].aborted == [("a", 1)]
    puppets.core.close()


def test_the_next_one_serves_the_adapter_that_was_loaded_last_under_a_name() -> None:
    """It may have another one of that name from the start, which the settings name."""
    puppets = Puppets()
    puppets.core.ask(Question("unload_adapter", "a"))
    puppets.core.ask(load_question("a", "/new"))
    puppets.made[0].die()
    puppets.replaced()
    assert puppets.made[1].asked == [load_question("a", "/new", in_place=True)]
    puppets.core.close()


def test_the_next_one_is_asked_what_it_would_not_do_by_itself() -> None:
    puppets = Puppets()
    for question in (
        load_question("b", "/b"),
        load_question("c", "/c"),
        Question("unload_adapter", "b"),
        Question("unload_adapter", "a"),  # which it has from the start
        Question("drain"),
    ):
        puppets.core.ask(question)
    puppets.core.keep(Question("pause", "all"))
    puppets.core.keep(Question("resume"))
    expected = [load_question("c", "/c", in_place=True), Question("unload_adapter", "a")]
    expected.append(Question("drain"))
    assert [*puppets.core._controls.values()] == expected
    puppets.made[0].die()
    puppets.replaced()
    assert puppets.made[1].asked == expected
    puppets.core.close()


def test_what_a_new_one_was_asked_can_be_taken_back_before_it_serves() -> None:
    puppets = Puppets()
    puppets.core.keep(Question("pause", "all"))
    original = Puppet.ask

    def resumed(puppet: Puppet, question: Question) -> Future[Any]:
        if question.verb == "pause":
            puppets.core.keep(Question("resume"))
        return original(puppet, question)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Puppet, "ask", resumed)
        puppets.made[0].die()
        puppets.replaced()
    assert puppets.made[1].asked == [Question("pause", "all"), Question("resume")]
    assert not puppets.core._controls
    puppets.core.close()


def test_one_that_dies_twice_is_replaced_once() -> None:
    puppets = Puppets()
    puppets.door.clear()
    puppets.made[0].die()
    puppets.made[0].die()
    assert puppets.deaths == [("gone", False)]
    puppets.door.set()
    puppets.replaced()
    assert len(puppets.made) == 2
    puppets.core.close()


def test_an_end_that_was_asked_for_is_no_death() -> None:
    puppets = Puppets()
    puppets.core.close()
    puppets.made[0].die()
    assert puppets.deaths == []
    assert len(puppets.made) == 1


@pytest.mark.parametrize(("later_s", "for_good"), [(10.0, True), (10.5, False)])
def test_restarts_of_long_ago_do_not_count(
    later_s: float, for_good: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(restarting, "monotonic", lambda: now[0])
    puppets = Puppets(core_restarts=1, core_restart_span_s=10.0)
    puppets.made[0].die()
    puppets.replaced()
    now[0] += later_s
    puppets.made[1].die()
    puppets.replaced()
    assert puppets.deaths == [("gone", False), ("gone", for_good)]
    puppets.core.close()


def test_only_the_last_failure_is_for_good() -> None:
    puppets = Puppets(core_restarts=2)
    puppets.problem = "no such model"
    puppets.made[0].die()
    puppets.replaced()
    assert puppets.deaths == [("gone", False), ("no such model", False), ("no such model", True)]
    assert puppets.core.healthy() == "no such model"
    puppets.core.close()


@pytest.mark.parametrize("problem", ["", "no such model"])
def test_closing_ends_a_replacement_too(problem: str) -> None:
    puppets = Puppets()
    puppets.door.clear()
    puppets.problem = problem
    puppets.made[0].die()
    puppets.made[0].closed.wait()  # by the replacement, which stands before the door then
    puppets.made[0].close = puppets.door.set  # type: ignore[method-assign]
    puppets.core.close()
    assert puppets.core._replacing is not None
    assert not puppets.core._replacing.is_alive()
    assert puppets.deaths == [("gone", False)]
    assert all(one.closed.is_set() for one in puppets.made[1:])


@pytest.mark.parametrize(
    "wrong",
    [{"core": "card"}, {"on_core_crash": "cry"}, {"core_restarts": 0}, {"core_restart_span_s": 0}],
)
def test_wrong_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        CoreSettings(**wrong)
