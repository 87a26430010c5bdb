"""Other weights, sleep and wake-up between the steps of an engine: the oracle notices stale KV."""

import json
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

import pytest

from paceline.core.errors import PacelineError, RequestError, WeightsLost
from paceline.core.request import Finish
from paceline.engine.loop.engine import Engine
from paceline.engine.loop.messages import EngineFailed, EngineUnavailable, Question, Verb
from paceline.testing.reference import digest_of, next_token, reference
from tests.engine.loop.test_engine import Teller, request
from tests.engine.support import MAX_MODEL_LEN, OraclePort, components, tokenizer

VOCAB = tokenizer().vocab_size


@dataclass
class Named:
    version: str


class OracleMemory:
    """The weights of an oracle are a word."""

    def __init__(self, engine: Engine, port: OraclePort) -> None:
        self.engine, self.port = engine, port
        self.version = self.fingerprint = ""
        self.asleep: list[Any] = []

    def check_sleep(self, level: int) -> None:
        if level == 2 and self.version == "precious":
            raise RequestError("level 2 would drop them")

    def open(self, path: str, version: str) -> Named:
        if path == "wrong":
            raise RequestError("wrong has other shapes")
        return Named(path)

    def load(self, weights: Named) -> None:
        assert not self.port.results, "a step is in flight"
        if weights.version == "torn":
            raise WeightsLost("a file ended early")
        self.version = self.fingerprint = self.port.oracle.weights = weights.version

    def sleep(self, level: int) -> None:
        assert not self.port.results, "a step is in flight"
        self.asleep.append(level)
        self.port.oracle.cells = [[-1] * len(one) for one in self.port.oracle.cells]

    def wake(self, tags: Sequence[str]) -> None:
        self.asleep.append(tags)


class Kept(Teller):
    """An engine whose weights may change."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(components(**settings))
        assert isinstance(self.port, OraclePort)
        self.memory = OracleMemory(self.engine, self.port)
        self.engine.upkeep.memory = self.memory

    def ask(self, verb: Verb, **given: Any) -> Future[Any]:
        return self.engine.answer(Question(verb, json.dumps(given)))

    def answer(self, verb: Verb, **given: Any) -> Any:
        answer = self.ask(verb, **given)
        while not answer.done():
            self.engine.rest()
            self.turn()
        return answer.result()


def due(name: str, weights: str, length: int = 9, most: int = 6) -> list[int]:
    asked = replace(request(name, length, most), cache_salt=weights)
    return reference(asked, VOCAB, MAX_MODEL_LEN)[0]


def continued(name: str, tokens: list[int], weights: str, length: int, most: int) -> list[int]:
    """What follows the first tokens with other weights."""
    asked, found = replace(request(name, length, most), cache_salt=weights), list(tokens)
    while len(found) < most:
        found.append(next_token(asked, digest_of(asked, found), VOCAB))
    return found


@pytest.mark.parametrize("depth", [1, 3])
def test_a_loop_of_generate_and_update(depth: int) -> None:
    """The prompt is cached in each round, and what other weights computed is never read."""
    kept = Kept(depth=depth)
    for round, weights in enumerate(["", "one", "two", "one"]):
        if round:
            assert kept.answer("update_weights", path=weights) == weights
        for name in (f"a{round}", f"b{round}"):
            kept.engine.submit(request(name))
            kept.run()
            assert kept.tokens[name] == due(name, weights)
    assert kept.engine.answer(Question("weight_version")) == "one"
    assert kept.engine.scheduler.stats.prefix_hits == 4 * 8


def test_open_requests_finish_with_the_weights_that_they_began_with() -> None:
    kept = Kept(depth=2, max_num_seqs=1)
    kept.engine.submit(request("runs", 30, 12))
    for _ in range(5):
        kept.turn()
    kept.engine.submit(request("waits", 30, 12))
    assert kept.answer("update_weights", path="new", mode="wait") == "new"
    kept.run()
    assert kept.tokens["runs"] == due("runs", "", 30, 12)
    assert kept.tokens["waits"] == due("waits", "new", 30, 12)


@pytest.mark.parametrize("depth", [1, 3])
def test_open_requests_are_computed_again_with_other_weights(depth: int) -> None:
    kept = Kept(depth=depth)
    for name in ("a", "b"):
        kept.engine.submit(request(name, 30, 12))
    for _ in range(5):
        kept.turn()
    kept.answer("update_weights", path="new", mode="keep")
    before = {name: list(kept.tokens[name]) for name in ("a", "b")}
    assert all(0 < len(found) < 12 for found in before.values())
    kept.run()
    for name, found in before.items():
        assert kept.tokens[name] == continued(name, found, "new", 30, 12)


def test_open_requests_are_aborted() -> None:
    kept = Kept()
    kept.engine.submit(request("a", 30, 12))
    kept.turn()
    kept.answer("update_weights", path="new", mode="abort")
    kept.turn()
    assert kept.ends["a"][0] is Finish.ABORT


def test_weights_that_do_not_fit_change_nothing() -> None:
    kept = Kept()
    kept.engine.submit(request("a", 30, 12))
    kept.turn()
    for given, message in (
        ({"path": "wrong"}, "other shapes"),
        ({"path": "new", "mode": "later"}, "mode is 'later'; it must be one of abort, wait, keep"),
    ):
        with pytest.raises(RequestError, match=message):
            kept.answer("update_weights", **given)
    kept.run()
    assert kept.tokens["a"] == due("a", "", 30, 12)


def test_without_weights_requests_are_refused_until_there_are_some() -> None:
    kept = Kept()
    with pytest.raises(WeightsLost, match="ended early"):
        kept.answer("update_weights", path="torn")
    kept.engine.submit(request("a"))
    kept.turn()
    assert isinstance(kept.refused["a"], EngineUnavailable)
    assert "call update_weights again" in str(kept.refused["a"])
    kept.answer("update_weights", path="new")
    kept.engine.submit(request("b"))
    kept.run()
    assert kept.tokens["b"] == due("b", "new")


@pytest.mark.parametrize("mode", ["wait", "keep", "abort"])
def test_an_engine_sleeps_and_wakes(mode: str) -> None:
    kept = Kept(depth=2)
    kept.engine.submit(request("a", 30, 12))
    for _ in range(5):
        kept.turn()
    kept.answer("sleep", mode=mode, arrivals="wait")
    assert kept.engine.answer(Question("is_sleeping"))
    kept.engine.submit(request("b"))
    kept.turn()
    ended = {"wait": Finish.LENGTH, "abort": Finish.ABORT}.get(mode)
    assert kept.ends.get("a", (None,))[0] is ended
    kept.answer("wake_up", tags=["weights"])
    kept.turn()
    assert "b" not in kept.tokens
    kept.answer("wake_up", tags=["kv_cache"])
    assert not kept.engine.answer(Question("is_sleeping"))
    kept.run()
    assert kept.tokens["b"] == due("b", "")
    assert mode == "abort" or kept.tokens["a"] == due("a", "", 30, 12)
    assert kept.memory.asleep == [1, ["weights"], ["kv_cache"]]


def test_requests_are_refused_while_an_engine_sleeps() -> None:
    kept = Kept()
    kept.answer("sleep", level=1)
    kept.engine.submit(request("a"))
    kept.turn()
    assert isinstance(kept.refused["a"], EngineUnavailable)
    assert "asleep (kv_cache, weights); call wake_up" in str(kept.refused["a"])
    with pytest.raises(RequestError, match="weights are asleep"):
        kept.answer("update_weights", path="new")
    for given, message in (({"level": 3}, "level is 3"), ({"arrivals": "go"}, "wait, refuse")):
        with pytest.raises(RequestError, match=message):
            kept.answer("sleep", **given)
    with pytest.raises(RequestError, match="tags is 'all'"):
        kept.answer("wake_up", tags=["all"])


def test_level_0_stops_steps_and_keeps_kv() -> None:
    kept = Kept()
    kept.engine.submit(request("a"))
    kept.run()
    kept.answer("sleep", level=0, arrivals="wait")
    kept.engine.submit(request("b"))
    kept.turn()
    assert "b" not in kept.tokens
    kept.answer("wake_up", tags=["scheduling"])
    kept.run()
    assert kept.engine.scheduler.stats.prefix_hits == 8
    assert kept.memory.asleep == []


def test_level_2_needs_weights_after_the_wake_up() -> None:
    kept = Kept()
    kept.answer("sleep", level=2)
    kept.answer("wake_up")
    kept.engine.submit(request("a"))
    kept.turn()
    assert "slept at level 2" in str(kept.refused["a"])
    kept.answer("update_weights", path="new")
    kept.engine.submit(request("b"))
    kept.run()
    assert kept.tokens["b"] == due("b", "new")


def test_a_pause_of_a_client_outlasts_a_change() -> None:
    kept = Kept()
    kept.engine.answer(Question("pause", "all"))
    kept.answer("update_weights", path="new")
    assert kept.engine.answer(Question("paused")) == kept.engine.scheduler.paused == "all"
    kept.engine.answer(Question("resume"))
    assert not kept.engine.scheduler.paused


def test_an_engine_that_stops_answers_every_change() -> None:
    kept = Kept()
    answers = [kept.ask("update_weights", path=name) for name in ("one", "other")]
    kept.engine.close()
    for answer in answers:
        with pytest.raises(PacelineError):
            answer.result(timeout=5)
    other = Engine(components().scheduler, components().runner)
    with pytest.raises(RequestError, match="cannot be changed"):
        other.answer(Question("sleep", "{}"))
    assert issubclass(EngineUnavailable, EngineFailed)
