"""Several engines as one core: where requests run, and what becomes of them when an engine dies."""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from threading import Event, Thread
from time import monotonic
from typing import Any

import msgspec
import pytest

from paceline.core.errors import ConfigError, QueueFull, RequestError
from paceline.core.plan import Plan
from paceline.core.request import Finish
from paceline.engine.api import GenerationRequest
from paceline.engine.arguments import load_question
from paceline.engine.frontend.frontend import Frontend
from paceline.engine.frontend.metrics import Metrics
from paceline.engine.frontend.stream import DeltaStream
from paceline.engine.live.frames import Frame, FrameQuestion
from paceline.engine.loop.adapters import AdapterRequests
from paceline.engine.loop.messages import EngineFailed, EngineUnavailable, Question
from paceline.engine.replicas.router import Placement
from paceline.engine.replicas.several_cores import SeveralCores
from paceline.engine.settings import CoreSettings
from paceline.engine.streaming import StreamingEngine
from paceline.engine.transport.restart import RestartBudget, RestartingCore
from paceline.engine.transport.thread import ThreadCore
from paceline.text.chat_template import ChatTemplate
from tests.engine.loop.test_adapters import Folder
from tests.engine.support import ask, components, expected, tokenizer

LONG: dict[str, Any] = {"max_tokens": 200, "ignore_eos": True}
SOME = 6  # tokens
SHORT: dict[str, Any] = {"max_tokens": 4, "ignore_eos": True}


class Several:
    """Engines on threads, with an oracle instead of a model, behind one front end."""

    def __init__(
        self, engines: int, exits: bool = False, wait_s: float = 60.0, **settings: Any
    ) -> None:
        self.settings = settings
        self.door = Event()  # no engine is built while it is shut
        self.door.set()
        self.holds = False  # does an engine pause after some tokens?

        def restarting() -> RestartingCore:
            return RestartingCore(self._made, CoreSettings(core_restarts=2))  # type: ignore[arg-type]

        self.cores = [restarting() for _ in range(engines)]
        self.core = SeveralCores(self.cores, exits, wait_s)
        self._homes: dict[str, int] = {}  # also of requests that have ended
        placements: Any = self.core._placements
        place = placements.place

        def placed(one: Placement, engine: int) -> None:
            self._homes[one.request.id] = engine
            place(one, engine)

        placements.place = placed
        template = ChatTemplate.of(tokenizer())
        metrics = [Metrics() for _ in range(engines)]
        frontend = Frontend(tokenizer(), template, monotonic, metrics=metrics)
        self.engine = StreamingEngine(self.core, frontend)

    def _made(self) -> ThreadCore:
        self.door.wait()
        made = components(**self.settings)
        scheduler, plan = made.scheduler, made.scheduler.plan

        def planned(now: float) -> Plan:
            if self.holds and scheduler.stats.sampled >= SOME:
                scheduler.pause("all")
            return plan(now)

        scheduler.plan = planned  # type: ignore[method-assign]
        return ThreadCore(made.engine())

    def kill(self, engine: int) -> None:
        found: Any = self.cores[engine]._core
        found._engine.turn = None
        found._engine.nudge()

    def home(self, stream: DeltaStream) -> int:
        """The engine that a request was submitted to last."""
        return self._homes[stream.request_id]

    async def lose(self, engine: int) -> None:
        """Kill an engine, and return when that is known."""
        lost = self.cores[engine]._core
        self.kill(engine)
        while not self.cores[engine]._trouble and self.cores[engine]._core is lost:
            await asyncio.sleep(0.002)

    async def until_held(self, requests: int) -> None:
        while len(self.core._placements.held) != requests:
            await asyncio.sleep(0.002)

    async def until_healthy(self, engine: int) -> None:
        while self.core.troubles()[engine]:
            await asyncio.sleep(0.002)


def on(use: Callable[[Several], Awaitable[None]], engines: int = 2, **settings: Any) -> None:
    async def run() -> None:
        several = Several(engines, **settings)
        async with asyncio.timeout(50), several.engine:
            try:
                await use(several)
            finally:
                several.door.set()

    asyncio.run(run())


def correct(stream: DeltaStream, tokens: int) -> list[int]:
    params = ask("", max_tokens=tokens, ignore_eos=True).params
    return expected(stream.prompt_token_ids, params)[0]


def test_prompts_that_begin_alike_run_in_one_engine_and_the_others_elsewhere() -> None:
    async def use(several: Several) -> None:
        homes: dict[int, set[int]] = {}
        for turn in range(4):
            for group in range(8):
                prompt = f"{group} is the number of this group. " * 2 + f"Question {turn}"
                stream = several.engine.generate(ask(prompt, **SHORT))
                homes.setdefault(group, set()).add(several.home(stream))
                assert list((await stream.whole()).outputs[0].token_ids) == correct(stream, 4)
        assert all(len(home) == 1 for home in homes.values())
        assert {engine for home in homes.values() for engine in home} == {0, 1}
        reports = await several.engine.reports()
        assert sum(one.counters["generation_tokens"] for one in reports) == 4 * 8 * 4
        hits = [one.counters["prompt_tokens_cached"] for one in reports]
        assert all(one > 100 for one in hits), "each engine found the prefixes of its groups"

    on(use)


def test_a_client_may_choose_the_engine() -> None:
    async def use(several: Several) -> None:
        await several.engine.pause("all")
        streams = [several.engine.generate(at_rank(rank)) for rank in (0, 1, 0, 0, 1)]
        assert [several.home(one) for one in streams] == [0, 1, 0, 0, 1]
        with pytest.raises(QueueFull, match="3 requests are already waiting"):
            await several.engine.generate(at_rank(0)).whole()  # engine 1 has room
        several.kill(0)
        while {several.home(one) for one in streams} != {1}:  # they move, as others do
            await asyncio.sleep(0.002)
        with pytest.raises(EngineFailed, match="is being restarted"):
            several.engine.generate(at_rank(0))
        await several.engine.resume()
        for stream in streams:
            assert list((await stream.whole()).outputs[0].token_ids) == correct(stream, 4)
        with pytest.raises(RequestError, match=r"data_parallel_rank is 2; it must lie in 0\.\.1"):
            several.engine.generate(at_rank(2))

    on(use, max_num_queued_reqs=3)


def at_rank(rank: int) -> GenerationRequest:
    return replace(ask("the same prompt", **SHORT), data_parallel_rank=rank)


def test_a_busy_engine_leaves_requests_to_others() -> None:
    async def use(several: Several) -> None:
        await several.engine.pause("all")
        streams = [several.engine.generate(ask("the same prompt", **SHORT)) for _ in range(40)]
        homes = [several.home(one) for one in streams]
        assert homes[:8] == [homes[0]] * 8
        assert {*homes} == {0, 1}
        assert 12 <= homes.count(0) <= 28
        with pytest.raises(QueueFull, match=r"max_num_seqs \(8\).* of 2 engines"):
            several.engine.check_room(500)
        await several.engine.resume()
        await asyncio.gather(*(one.whole() for one in streams))

    on(use, max_num_queued_reqs=64)


def test_a_request_that_finds_a_full_queue_goes_to_another_engine_once() -> None:
    async def use(several: Several) -> None:
        await several.engine.pause("all")
        streams = [several.engine.generate(ask("the same prompt", **SHORT)) for _ in range(9)]
        while len(several.core._placements.open) == 9:
            await asyncio.sleep(0.002)
        await several.engine.resume()
        found = await asyncio.gather(*(one.whole() for one in streams), return_exceptions=True)
        (refused,) = (one for one in found if isinstance(one, BaseException))
        assert isinstance(refused, QueueFull)
        reports = await several.engine.reports()
        assert [one.request_success["length"] for one in reports] == [4, 4]
        assert not several.core._placements.open
        assert several.core._placements.router.loads == pytest.approx([0, 0])

    on(use, max_num_queued_reqs=4)


def test_a_lone_engine_refuses_what_its_full_queue_cannot_take() -> None:
    async def use(several: Several) -> None:
        await several.engine.pause("all")
        streams = [several.engine.generate(ask("the same prompt", **SHORT)) for _ in range(5)]
        while len(several.core._placements.open) == 5:
            await asyncio.sleep(0.002)
        await several.engine.resume()
        found = await asyncio.gather(*(one.whole() for one in streams), return_exceptions=True)
        refused = [one for one in found if isinstance(one, BaseException)]
        assert len(refused) == 2
        assert all(isinstance(one, QueueFull) for one in refused)
        assert not several.core._placements.open

    on(use, engines=1, max_num_queued_reqs=3)


async def begun(several: Several, *asked: GenerationRequest) -> list[DeltaStream]:
    """Streams in one engine, of which some tokens were delivered and which wait for more."""
    await several.engine.pause("all")  # so that all begin in one step
    streams = [several.engine.generate(one) for one in asked]
    several.holds = True
    await several.engine.resume()
    home = several.home(streams[0])
    assert {several.home(one) for one in streams} == {home}
    for stream in streams:
        await anext(stream)
    await several.engine.pause("all")
    several.holds = False
    return streams


def test_another_engine_continues_the_requests_of_a_dead_one() -> None:
    async def use(several: Several) -> None:
        engine = several.engine
        (open_,) = await begun(several, ask("begun", **LONG))
        dying, other = several.home(open_), 1 - several.home(open_)
        fresh, aborted = (engine.generate(ask("begun", **SHORT)) for _ in range(2))
        waiting = engine.generate(ask("begun", **SHORT), parked="grammar")
        assert {several.home(one) for one in (fresh, aborted, waiting)} == {dying}
        several.cores[dying]._core.abort = lambda *_: None  # type: ignore[method-assign]
        await engine.abort(aborted.request_id)
        several.kill(dying)
        assert (await aborted.whole()).outputs[0].finish_reason == "abort"
        assert {several.home(one) for one in (open_, fresh, waiting)} == {other}
        assert engine.healthy() is None
        await engine.resume()
        for stream, tokens in ((open_, 200), (fresh, 4)):
            assert list((await stream.whole()).outputs[0].token_ids) == correct(stream, tokens)
        engine.wake(waiting.request_id)
        assert list((await waiting.whole()).outputs[0].token_ids) == correct(waiting, 4)
        await several.until_healthy(dying)
        reports = await engine.reports()
        assert [one.crashes for one in reports] == [int(one == dying) for one in (0, 1)]
        assert reports[dying].request_success["abort"] == 1
        assert reports[other].request_success["length"] == 3
        assert sum(one.counters["generation_tokens"] for one in reports) == 200 + 4 + 4
        assert "that another engine generated" in await engine.explain(open_.request_id)
        assert not several.core._placements.open
        assert several.core._placements.router.loads == pytest.approx([0, 0])

    on(use)


def test_samples_of_a_dead_engine_continue_where_they_were() -> None:
    """Also after a stop string ended one of them, and the engine did not learn of it."""

    async def use(several: Several) -> None:
        asked = ask("begun", n=3, seed=7, **(LONG | {"max_tokens": 100}))
        (stream,) = await begun(several, asked)
        home = several.home(stream)
        several.cores[home]._core.abort = lambda *_: None  # type: ignore[method-assign]
        several.core.abort(stream.request_id, 1)
        several.kill(home)
        await several.engine.resume()
        output = await stream.whole()
        for child in (0, 2):
            tokens, _ = expected(stream.prompt_token_ids, asked.params, seed=7 + child)
            assert list(output.outputs[child].token_ids) == tokens

    on(use)


def test_requests_of_an_engine_that_lost_its_runner_move_as_well() -> None:
    async def use(several: Several) -> None:
        (stream,) = await begun(several, ask("begun", **LONG))
        home = several.home(stream)
        lost: Any = several.cores[home]._core
        lost._engine.lose_runner("rank 1 is gone")
        while lost.healthy() is None:
            await asyncio.sleep(0.002)
        several.kill(home)  # as a process does that has reported its last requests
        await several.engine.resume()
        assert list((await stream.whole()).outputs[0].token_ids) == correct(stream, 200)

    on(use)


def test_a_request_that_cannot_be_continued_ends_with_the_reason() -> None:
    async def use(several: Several) -> None:
        (stream,) = await begun(several, ask("begun", **LONG))
        home = several.home(stream)
        other: Any = several.cores[1 - home]._core
        other._engine.scheduler.submit = refusing
        several.kill(home)
        output = await stream.whole()
        assert (output.outputs[0].finish_reason, output.error) == ("error", "not here")
        assert not several.core._placements.open

    on(use)


def test_one_engine_continues_its_requests_after_its_restart() -> None:
    """Greedy and seeded ones, with their own texts; others begin; and those that leave are gone."""

    async def use(several: Several) -> None:
        engine = several.engine
        sampled = ask("begun", n=3, seed=7, **(LONG | {"max_tokens": 100}))
        greedy, samples = await begun(several, ask("begun", **LONG), sampled)
        several.door.clear()
        several.cores[0]._core.abort = lambda *_: None  # type: ignore[method-assign]
        several.core.abort(samples.request_id, 1)
        await several.lose(0)
        assert "is being restarted" in (engine.healthy() or "")
        late, parked = (engine.generate(ask("late", **SHORT)) for _ in range(2))
        left, cut = (engine.generate(ask("leaves", **SHORT)) for _ in range(2))
        await several.until_held(6)
        with pytest.raises(RequestError, match="already open"):
            several.core.forward(several.core._placements.open[late.request_id].request)
        engine.park(parked.request_id, "grammar")
        engine.park(late.request_id, "grammar")
        engine.wake(late.request_id)
        await engine.abort(left.request_id)
        several.core.abort(cut.request_id, 0)
        for stream in (left, cut):
            assert (await stream.whole()).outputs[0].finish_reason == "abort"
        several.door.set()
        await several.until_healthy(0)
        await engine.resume()
        for stream, tokens in ((greedy, 200), (late, 4)):
            assert list((await stream.whole()).outputs[0].token_ids) == correct(stream, tokens)
        found = await samples.whole()
        for child in (0, 2):
            tokens, _ = expected(samples.prompt_token_ids, sampled.params, seed=7 + child)
            assert list(found.outputs[child].token_ids) == tokens
        assert len(several.core._placements.open) == 1, "it is parked"
        engine.wake(parked.request_id)
        assert list((await parked.whole()).outputs[0].token_ids) == correct(parked, 4)
        assert (await engine.stats()).crashes == 1
        assert "engine 0" not in await engine.explain(greedy.request_id)
        assert not several.core._placements.open
        assert several.core._placements.router.loads == pytest.approx([0])

    on(use, engines=1)


def test_a_choice_that_is_aborted_while_its_request_is_held_is_not_computed_again() -> None:
    async def use(several: Several) -> None:
        (samples,) = await begun(several, ask("begun", n=2, seed=7, **(LONG | {"max_tokens": 100})))
        several.door.clear()
        await several.lose(0)
        await several.until_held(1)
        several.core.abort(samples.request_id, 0)
        held = several.core._placements.held[samples.request_id].request.request()
        assert [one is None for one in held.generated] == [True, False]
        several.door.set()
        await several.until_healthy(0)
        await several.engine.resume()
        assert (await samples.whole()).outputs[1].finish_reason == "length"

    on(use, engines=1)


def test_requests_wait_while_all_engines_are_restarted() -> None:
    async def use(several: Several) -> None:
        engine = several.engine
        streams = await begun(several, ask("begun", **LONG), ask("begun", **LONG))
        several.door.clear()
        await asyncio.gather(*map(several.lose, range(2)))
        streams.append(engine.generate(ask("late", **LONG)))
        await several.until_held(3)
        several.door.set()
        await asyncio.gather(*map(several.until_healthy, range(2)))
        await engine.resume()
        for stream in streams:
            assert list((await stream.whole()).outputs[0].token_ids) == correct(stream, 200)

    on(use)


def test_a_request_that_kills_its_engine_again_and_again_ends() -> None:
    """Its engine is there for others. One that got tokens in between did not kill it."""

    async def use(several: Several) -> None:
        engine = several.engine
        (going,) = await begun(several, ask("goes on", **LONG))
        poison = engine.generate(ask("poison", **SHORT))
        await several.lose(0)
        await several.until_healthy(0)
        await several.until_held(0)  # the engine has both again, and dies with them
        several.core._placements.open[going.request_id].tokens -= 1  # as if it had got another
        await several.lose(0)
        output = await poison.whole()
        assert (output.outputs[0].finish_reason, "has died" in output.error) == ("error", True)
        await several.until_healthy(0)
        await engine.resume()
        assert list((await going.whole()).outputs[0].token_ids) == correct(going, 200)
        await several.lose(0)
        assert "has died" in await engine.gone(), "restarts are bounded"

    on(use, engines=1)


def test_no_request_waits_for_an_engine_for_ever() -> None:
    async def use(several: Several) -> None:
        engine = several.engine
        (going,) = await begun(several, ask("goes on", **LONG))
        lost = engine.generate(ask("lost", **SHORT))
        several.door.clear()
        await several.lose(0)
        late = engine.generate(ask("late", **SHORT))
        for stream in (lost, late):
            with pytest.raises(EngineUnavailable, match=r"was there for 0.1 s: .*restarted"):
                await stream.whole()
        output = await going.whole()
        assert (output.outputs[0].finish_reason, "was there for" in output.error) == ("error", True)
        assert not several.core._placements.open

    on(use, engines=1, wait_s=0.1)


def test_held_requests_end_with_an_engine_that_cannot_be_built_again() -> None:
    async def use(several: Several) -> None:
        engine = several.engine
        several.door.clear()
        await engine.pause("all")
        waiting = engine.generate(ask("waiting", **SHORT))
        await several.lose(0)
        await several.until_held(1)
        several.cores[0]._make = unbuildable
        several.settings = {"block_size": 0}  # for the one that is being built
        several.door.set()
        assert "died" in await engine.gone() or "no model" in (engine.healthy() or "")
        assert (await waiting.whole()).outputs[0].finish_reason == "error"
        with pytest.raises(EngineFailed):
            engine.generate(ask("late"))

    on(use, engines=1)


def unbuildable() -> Any:
    raise ConfigError("no model")


def refusing(*_: object) -> None:
    raise RequestError("not here")


def test_a_request_moves_once_and_the_last_engine_that_is_gone_ends_the_core() -> None:
    async def use(several: Several) -> None:
        engine = several.engine
        await engine.pause("all")
        stream = engine.generate(ask("poison", **SHORT))
        for cores in several.cores:
            cores._budget = RestartBudget(0, 1.0)  # so that none is restarted
        first = several.home(stream)
        several.kill(first)
        while several.home(stream) == first:
            await asyncio.sleep(0.002)
        assert engine.troubles()[first]
        with pytest.raises(RequestError, match="already open"):
            several.core.forward(several.core._placements.open[stream.request_id].request)
        assert (await engine.stats(first)).core_pid == 0
        several.kill(1 - first)
        assert (await stream.whole()).outputs[0].finish_reason == Finish.ERROR.value
        assert "the engine has died" in await engine.gone()
        assert "the engine has died" in (engine.healthy() or "")
        with pytest.raises(EngineFailed, match="the engine has died"):
            engine.generate(ask("another"))
        with pytest.raises(EngineFailed, match="the engine has died"):
            await engine.paused()

    on(use)


def test_the_first_engine_that_is_gone_ends_a_core_that_exits() -> None:
    async def use(several: Several) -> None:
        several.cores[1]._budget = RestartBudget(0, 1.0)
        several.engine.generate(ask("hello", **SHORT))
        several.kill(1)
        assert "the engine has died" in await several.engine.gone()

    on(use, exits=True)


def test_controls_reach_every_engine_and_the_successor_of_a_dead_one() -> None:
    async def use(several: Several) -> None:
        engine = several.engine
        await engine.pause("new")
        assert await engine.paused() == "new"
        several.kill(1)
        while not engine.troubles()[1]:
            await asyncio.sleep(0.002)
        await engine.pause("all")
        assert await engine.paused() == "all"
        await several.until_healthy(1)
        streams = [engine.generate(ask(f"{one} asks", **SHORT)) for one in range(6)]
        assert {several.home(one) for one in streams} == {0, 1}
        assert several.cores[1].ask(Question("paused")).result() == "all"
        await engine.settled()
        await engine.resume()
        for stream in streams:
            assert list((await stream.whole()).outputs[0].token_ids) == correct(stream, 4)
        assert await engine.reset_prefix_cache()
        assert (await engine.adapters.listed()) == {}
        await engine.drain()
        with pytest.raises(RequestError):
            await engine.generate(ask("late")).whole()

    on(use)


def test_a_drain_outlives_an_engine_and_its_requests_move_all_the_same() -> None:
    async def use(several: Several) -> None:
        engine = several.engine
        (open_,) = await begun(several, ask("begun", **LONG))
        home = several.home(open_)
        fresh = engine.generate(ask("begun", **SHORT))
        draining = asyncio.create_task(engine.drain())
        while not several.cores[home]._controls.get("drain"):
            await asyncio.sleep(0.002)
        several.kill(home)
        await several.until_healthy(home)
        await engine.resume()
        assert list((await open_.whole()).outputs[0].token_ids) == correct(open_, 200)
        assert list((await fresh.whole()).outputs[0].token_ids) == correct(fresh, 4)
        await draining
        for rank in range(2):
            with pytest.raises(QueueFull, match="draining"):
                await engine.generate(at_rank(rank)).whole()

    on(use)


def test_an_adapter_that_one_engine_refuses_is_in_none() -> None:
    async def use(several: Several) -> None:
        engine = several.engine
        folders = [Folder(), Folder()]
        for core, folder in zip(several.cores, folders, strict=True):
            found: Any = core._core
            found._engine.serve_adapters(AdapterRequests(folder, 4))
        await engine.adapters.load("kept", "/one")
        folders[1].bad = "/two"
        for name in ("new", "kept"):
            with pytest.raises(RequestError, match="bad files"):
                await engine.adapters.load(name, "/two", in_place=True)
        listed = [{"name": "kept", "path": "/one"}]
        for core in several.cores:
            assert core.ask(Question("adapters")).result() == listed
            assert [*core._controls] == ["adapter kept"]
        several.cores[1].ask(Question("unload_adapter", "kept")).result()
        with pytest.raises(RequestError, match="'kept' is not loaded"):
            await engine.adapters.unload("kept")
        assert several.cores[0].ask(Question("adapters")).result() == listed

    on(use)


def test_an_engine_that_dies_before_it_has_undone_a_load_does_not_repeat_it() -> None:
    async def use(several: Several) -> None:
        folders = [Folder(), Folder()]
        for core, folder in zip(several.cores, folders, strict=True):
            found: Any = core._core
            found._engine.serve_adapters(AdapterRequests(folder, 4))
        folders[1].bad = "/two"
        dying, asked = several.cores[0], several.cores[0].ask

        def asking(question: Question) -> Future[Any]:
            if question.verb == "unload_adapter":
                raise EngineFailed("it is gone")
            return asked(question)

        dying.ask = asking  # type: ignore[method-assign]
        with pytest.raises(RequestError, match="bad files"):
            await several.engine.adapters.load("new", "/two")
        assert not dying._controls

    on(use)


def test_changes_that_several_threads_ask_for_reach_all_engines_in_one_order() -> None:
    async def use(several: Several) -> None:
        for core in several.cores:
            found: Any = core._core
            found._engine.serve_adapters(AdapterRequests(Folder(), 4))
        assert await several.engine.adapters.listed() == {}  # the engines run from now on
        first, asked = several.cores[0], several.cores[0].ask
        both = list[Future[Any]]()

        def change(path: str) -> None:
            both.append(several.core.ask(load_question("a", path, in_place=True)))

        second = Thread(target=change, args=("/two",))

        def asking(question: Question) -> Future[Any]:
            answer = asked(question)
            if question.verb == "load_adapter" and not second.ident:
                second.start()
                second.join(0.05)  # it can ask all engines meanwhile, unless it has to wait
            return answer

        first.ask = asking  # type: ignore[method-assign]
        change("/one")
        second.join()
        for answer in both:
            answer.result(10)
        paths = [core.ask(Question("adapters")).result() for core in several.cores]
        assert paths == [[{"name": "a", "path": "/two"}]] * 2

    on(use)


def test_an_explanation_names_its_engine() -> None:
    async def use(several: Several) -> None:
        engine = several.engine
        stream = engine.generate(ask("hello", request_id="one", **SHORT))
        home = several.home(stream)
        await stream.whole()
        assert (await engine.explain("one")).startswith(f"engine {home}: ")
        with pytest.raises(RequestError, match="unknown"):
            await engine.explain("unknown")

    on(use, engines=3)


# -- live pages -------------------------------------------------------------


def test_each_engine_has_frames_and_one_of_them_knows_a_request() -> None:
    async def use(several: Several) -> None:
        live = several.engine.live
        streams = [several.engine.generate(ask(f"text {n}", **SHORT)) for n in range(2)]
        homes = list[int]()
        for stream in streams:
            await stream.whole()
            life, head = await live.life(stream.request_id)
            assert (life.request_id, life.state) == (stream.request_id, "FINISHED_LENGTH")
            assert head == list(stream.prompt_token_ids)
            homes.append(life.engine)
        with pytest.raises(RequestError, match="no request 'x'"):
            await live.life("x")
        with pytest.raises(RequestError, match="there are 2"):
            await live.frames(FrameQuestion(engine=2))
        runs = list[int]()
        for engine in range(2):
            answer = await live.frames(FrameQuestion(engine))
            frame = msgspec.json.decode(answer.frames[0], type=Frame)
            assert (frame.engine, frame.totals.finished) == (engine, homes.count(engine))
            runs.append(answer.run)
        several.kill(1)
        while runs[1] == answer.run:
            with suppress(EngineFailed):  # while it is being restarted
                answer = await live.frames(FrameQuestion(1, runs[1], number=1))
            await asyncio.sleep(0.002)
        assert (answer.number, len(answer.frames)) == (1, 1), "numbers begin anew"

    on(use)
