"""Compiling off the calling thread: once, within limits, and cached."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager
from threading import Event
from time import sleep
from typing import Any

import pytest

from paceline.core.constraint import Constraint
from paceline.core.errors import ConfigError, GrammarTooCostly, QueueFull, RequestError
from paceline.structured import compiler as module
from paceline.structured.backend import BACKENDS, Grammar, backend_names
from paceline.structured.compiler import CompilerLimits, GrammarCompiler, LazyCompiler
from paceline.structured.worker_process import OutOfTime
from tests.structured.support import accepts, table, torch_hidden

WAIT_S = 60.0
NUMBER = Constraint.regex("[0-9]+")
ENDLESS = Constraint.regex("((((a{0,99}){0,99}){0,99}){0,99}){0,99}")  # minutes in xgrammar


@contextmanager
def compiling(backend: str = "auto", **limits: Any) -> Iterator[GrammarCompiler]:
    with torch_hidden():
        compiler = GrammarCompiler(
            table(), backend_names(backend), CompilerLimits(workers=1, **limits)
        )
        try:
            yield compiler
        finally:
            compiler.close()


@pytest.fixture(scope="module")
def shared() -> Iterator[GrammarCompiler]:
    with compiling(limit_s=30.0) as compiler:
        compiler.submit(NUMBER).result(WAIT_S)
        yield compiler


def made_by(grammar: Grammar) -> str:
    return type(grammar).__name__


def test_a_grammar_is_compiled_and_kept(shared: GrammarCompiler) -> None:
    schema = Constraint.json({"type": "array", "items": {"type": "boolean"}})
    grammar = shared.submit(schema).result(WAIT_S)
    assert made_by(grammar) == "XGrammar"
    assert accepts(grammar, "[true, false]")
    again = shared.submit(Constraint.json({"type": "array", "items": {"type": "boolean"}}))
    assert again.done()
    assert again.result() is grammar


def test_what_was_done_is_counted() -> None:
    with compiling("guidance") as compiler:
        grammar = compiler.submit(NUMBER).result(WAIT_S)
        assert made_by(grammar) == "LLGuidanceGrammar"
        compiler.submit(NUMBER).result(WAIT_S)
        for _ in range(3):
            with pytest.raises(RequestError):
                compiler.submit(Constraint.regex("(")).result(WAIT_S)
        counts = compiler.counts
        done = (counts.grammars_compiled, counts.grammars_refused, counts.grammar_cache_hits)
        assert done == (1, 1, 3)
        assert counts.grammar_compile_s > 0


def test_reasoning_before_an_answer_shares_its_grammar(shared: GrammarCompiler) -> None:
    answer = Constraint.choice(["yes", "no"])
    reasoned = shared.submit(answer.after_reasoning("", "</think>")).result(WAIT_S)
    assert accepts(reasoned, "hm</think>\n\nyes")
    assert not accepts(reasoned, "yes")
    plain = shared.submit(answer)
    assert plain.done()
    assert accepts(plain.result(), "yes")
    optional = shared.submit(answer.after_reasoning("<think>", "</think>")).result(WAIT_S)
    assert accepts(optional, "<think>hm</think>no")
    assert accepts(optional, "no")
    wrong = Constraint.regex("(")
    for one in (wrong.after_reasoning("", "</think>"), wrong):
        with pytest.raises(RequestError, match="does not compile"):
            shared.submit(one).result(WAIT_S)


def test_the_second_backend_gets_what_the_first_refuses(shared: GrammarCompiler) -> None:
    grammar = shared.submit(Constraint.json({"type": "string", "maxLength": 3})).result(WAIT_S)
    assert made_by(grammar) == "LLGuidanceGrammar"
    assert accepts(grammar, '"abc"')


def test_what_both_refuse_is_refused_and_kept(shared: GrammarCompiler) -> None:
    bad = Constraint.json({"type": "array", "uniqueItems": True})
    with pytest.raises(RequestError, match=r"at #: uniqueItems .*; llguidance: .*uniqueItems"):
        shared.submit(bad).result(WAIT_S)
    assert shared.submit(bad).done()


def test_requests_with_one_constraint_share_its_compilation(
    shared: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []
    gate = Event()
    check = module.WorkerProcess.check

    def slow_check(self: Any, backend: str, constraint: Constraint, limit_s: float) -> None:
        tried.append(backend)
        assert gate.wait(WAIT_S)
        check(self, backend, constraint, limit_s)

    monkeypatch.setattr(module.WorkerProcess, "check", slow_check)
    same = Constraint.choice(["one", "two"])
    futures = [shared.submit(same) for _ in range(5)]
    assert futures[0].cancel()
    gate.set()
    grammars = {id(future.result(WAIT_S)) for future in futures[1:]}
    assert (len(grammars), tried) == (1, ["xgrammar"])
    with pytest.raises(CancelledError):
        futures[0].result()


def test_a_grammar_that_takes_too_long_is_refused_and_others_go_on() -> None:
    with compiling("xgrammar", limit_s=0.5) as compiler:
        compiler.submit(NUMBER).result(WAIT_S)
        with pytest.raises(GrammarTooCostly, match=r"takes more than 0\.5 s to compile") as no:
            compiler.submit(ENDLESS).result(WAIT_S)
        assert "gives 0.5 s to a grammar (--grammar-compile-limit-s)" in str(no.value)
        assert accepts(compiler.submit(Constraint.regex("[a-f]+")).result(WAIT_S), "fade")
        assert compiler.submit(ENDLESS).done()  # it is not tried again at once


def test_a_grammar_that_was_too_costly_is_tried_again_after_a_while() -> None:
    with compiling("xgrammar", limit_s=0.1, costly_s=0.0) as compiler:
        for _ in range(2):
            with pytest.raises(GrammarTooCostly):
                compiler.submit(ENDLESS).result(WAIT_S)
        assert (compiler.counts.grammars_refused, compiler.counts.grammar_cache_hits) == (2, 0)


def test_both_backends_together_keep_to_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[str, float]] = []

    def never(self: Any, backend: str, constraint: Constraint, limit_s: float) -> None:
        given.append((backend, limit_s))
        raise OutOfTime(f"more than {limit_s} s with {backend}")

    monkeypatch.setattr(module.WorkerProcess, "check", never)
    too_costly = pytest.raises(GrammarTooCostly, match="gives 2 s to a grammar")
    with compiling(limit_s=2.0, short_s=0.1) as compiler, too_costly:
        compiler.submit(NUMBER).result(WAIT_S)
    assert given == [("xgrammar", 0.1), ("xgrammar", 1.0), ("llguidance", 1.0)]


def test_slow_grammars_do_not_hold_up_a_quick_one() -> None:
    """All are of one client, and there is one thread for each lane."""
    with compiling("xgrammar", limit_s=WAIT_S, short_s=0.05) as compiler:
        compiler.submit(NUMBER).result(WAIT_S)
        slow = [
            compiler.submit(Constraint.regex(ENDLESS.text.replace("a", letter)))
            for letter in "abcdef"
        ]
        quick = compiler.submit(Constraint.regex("[a-f]+"))
        assert accepts(quick.result(WAIT_S), "fade")
        assert not any(future.done() for future in slow)


def test_clients_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    gate, begun = Event(), Event()

    def note(self: Any, backend: str, constraint: Constraint, limit_s: float) -> None:
        tried.append(constraint.text)
        begun.set()
        assert gate.wait(WAIT_S)

    monkeypatch.setattr(module.WorkerProcess, "check", note)
    with compiling("llguidance") as compiler:
        first = compiler.submit(Constraint.regex("first"), "a")
        assert begun.wait(WAIT_S)
        many = [compiler.submit(Constraint.regex(f"a{n}"), "a") for n in range(4)]
        other = [compiler.submit(Constraint.regex(f"b{n}"), "b") for n in range(2)]
        shared = compiler.submit(Constraint.regex("a3"), "b")
        gate.set()
        for future in (first, *many, *other, shared):
            future.result(WAIT_S)
    assert tried == ["first", "a0", "b0", "a1", "b1", "a2", "a3"]


def test_a_grammar_that_takes_too_much_memory_is_refused() -> None:
    values = Constraint.choice([f"value number {n} {n * n}" for n in range(12_000)])
    with compiling("xgrammar", memory_bytes=32 << 20) as compiler:
        with pytest.raises(GrammarTooCostly, match="takes more than 32 MiB to compile"):
            compiler.submit(values).result(WAIT_S)
        assert accepts(compiler.submit(NUMBER).result(WAIT_S), "12")


def test_a_grammar_whose_masks_take_too_long_is_refused() -> None:
    too_costly = pytest.raises(GrammarTooCostly, match="ms for each token, more than 1e-06 ms")
    with compiling(fill_s=1e-9) as compiler, too_costly:
        compiler.submit(NUMBER).result(WAIT_S)


def test_a_compilation_that_no_request_waits_for_stops() -> None:
    with compiling("xgrammar", limit_s=10 * WAIT_S) as compiler:
        first, second = compiler.submit(ENDLESS), compiler.submit(ENDLESS)
        behind = compiler.submit(Constraint.regex("[a-f]+"))
        assert first.cancel()
        assert not second.done()
        assert second.cancel()
        assert accepts(behind.result(WAIT_S), "fade")


def test_a_worker_that_died_is_replaced() -> None:
    with compiling("llguidance") as compiler:
        compiler.submit(NUMBER).result(WAIT_S)
        (worker,) = compiler._idle
        os.kill(worker._pid, signal.SIGKILL)
        while worker.alive:
            sleep(0.001)
        assert accepts(compiler.submit(Constraint.regex("[a-f]+")).result(WAIT_S), "fade")


def test_waiting_constraints_are_bounded() -> None:
    with compiling("xgrammar", limit_s=WAIT_S, pending=1) as compiler:
        slow = compiler.submit(ENDLESS)
        with pytest.raises(QueueFull, match="too many grammars"):
            compiler.submit(NUMBER).result(WAIT_S)
        others = [compiler.submit(Constraint.regex(f"[{n}]"), f"client {n}") for n in range(2)]
        with pytest.raises(QueueFull, match="too many grammars"):
            others[1].result(WAIT_S)
        assert accepts(others[0].result(WAIT_S), "0")  # a client with none has some room
        slow.cancel()


def test_closing_cancels_what_waits() -> None:
    futures: list[Future[Grammar]] = []
    with compiling("xgrammar", limit_s=WAIT_S) as compiler:
        futures += [compiler.submit(one) for one in (ENDLESS, NUMBER)]
    assert all(future.cancelled() for future in futures)


def test_a_library_that_is_missing_fails_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(BACKENDS) == {"xgrammar", "llguidance"}
    with compiling("llguidance") as compiler:
        monkeypatch.setattr(module, "backend_class", missing)
        with pytest.raises(ConfigError, match="not installed"):
            compiler.submit(NUMBER).result(WAIT_S)


def missing(name: str, *_: object) -> None:
    raise ConfigError(f"the grammar backend {name} is not installed")


WORD = Constraint.regex("[a-z]+")


def test_it_is_built_once_and_only_if_needed() -> None:
    built: list[GrammarCompiler] = []
    may_build = Event()

    def build() -> GrammarCompiler:
        assert may_build.wait(WAIT_S)
        built.append(GrammarCompiler(table(), backend_names("auto")))
        return built[-1]

    lazy = LazyCompiler(build)
    first, dropped = lazy.submit(WORD), lazy.submit(Constraint.regex("a"))
    assert dropped.cancel()
    assert not built
    may_build.set()
    assert accepts(first.result(WAIT_S), "word")
    assert lazy.submit(WORD).result(0) is first.result()
    assert len(built) == 1
    lazy.close()


def test_what_is_wrong_with_building_it_is_the_answer() -> None:
    def build() -> GrammarCompiler:
        raise ConfigError("no end token")

    lazy = LazyCompiler(build)
    for _ in range(2):
        with pytest.raises(ConfigError, match="no end token"):
            lazy.submit(WORD).result(WAIT_S)
    lazy.close()


def test_one_that_was_never_used_has_nothing_to_close() -> None:
    LazyCompiler(lambda: GrammarCompiler(table(), backend_names("auto"))).close()
