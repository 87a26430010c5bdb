"""What holds for every architecture on every backend: the logits of a reference, however the
sequences are cut into steps, and tokens that do not depend on the schedule.

A new table in `paceline.runner.models.architectures` is found and judged without being named here.
A backend may refuse a model, with a reason, and never computes it wrongly. `tests/interpreted`
runs the same tests on kernels for a GPU in an interpreter.
"""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import paceline.runner.models.architectures
from paceline import Scheduler
from paceline.core.sampling import Sampling
from paceline.runner.models.config import NO_ATTENTION
from paceline.runner.models.layer_groups import layer_groups
from paceline.runner.models.traits import architectures
from paceline.runner.native.library import is_available
from paceline.wiring.memory import attention_groups
from tests.conformance.architectures import Case, cases, spec_of, tokens_of
from tests.conformance.model_backends import (
    BLOCK,
    Comparison,
    ModelBackend,
    Step,
    backends,
    check_refusals,
    compare_wanted,
    every_case,
    follow,
    pairs_of,
)
from tests.conformance.native_backend import BACKENDS as NATIVE_BACKENDS
from tests.runner.driving import SETTINGS, TIGHT, WAYS, drive, for_states, requests
from tests.runner.models.test_layer_groups import with_sink
from tests.runner.support import Piece, batch_of
from tests.test_guides import GUIDES, blocks

GUIDE = GUIDES / "add-a-model.md"


@pytest.fixture(params=every_case(backends()))
def compared(request: pytest.FixtureRequest) -> Comparison:
    """A model on a backend that supports it."""
    backend, case = request.param
    return backend.compared(case)


def test_prompts_in_chunks_beside_each_other(compared: Comparison) -> None:
    """Contexts are longer than any window, and chunks of every kind meet in a step."""
    steps: list[Step] = [
        {"b": 10},
        {"a": 15, "b": 1},
        {"c": 8, "b": 1, "a": 1},
        {"a": 5, "c": 1, "b": 3},
        {"b": 2, "a": 1},
    ]
    follow(compared, {"a": 22, "b": 17, "c": 9}, steps)


def test_decodes_that_are_preempted_and_swapped(compared: Comparison) -> None:
    steps: list[Step] = [
        {"a": 13, "b": 9, "c": 2},
        {"a": 1, "b": 1, "c": 1},
        ("preempt", "b"),
        ("swap", "a"),
        {"c": 1, "a": 1},
        {"b": 11, "a": 1, "c": 1},
        ("swap", "b"),
        ("preempt", "c"),
        {"b": 1},
        {"c": 3, "b": 1},
        {"c": 3},
        {"b": 1, "c": 1, "a": 1},
    ]
    follow(compared, {"a": 17, "b": 14, "c": 7}, steps)


def test_positions_that_are_not_wanted_are_left_out(compared: Comparison) -> None:
    pieces = [Piece(tokens_of(14, seed=1), 0, [7, 2, 1, 3]), Piece(tokens_of(3, seed=2), 0, [6])]
    compare_wanted(compared.model, pieces, [[16, 3, 3, 0], []])


def test_only_the_cells_of_the_batch_are_written(compared: Comparison) -> None:
    model = compared.model
    kv = model.store(8, BLOCK)
    batch = batch_of([Piece([3, 4, 5, 6, 7], 0, [2, 6]), Piece([6], 0, [5])], BLOCK)
    model.forward(batch, kv)
    written = kv.content.flatten(3).any(dim=3).cpu()  # [blocks, layers, block_size]
    expected = torch.zeros(written.shape, dtype=torch.bool)
    expected[2], expected[6, :, 0], expected[5, :, 0] = True, True, True
    windows = enumerate(model.config.windows)
    kept = [layer for layer, window in windows if window != NO_ATTENTION]  # in blocks
    own = [model.config.read_by(layer) is None for layer in kept]
    expected &= torch.tensor(own)[:, None]
    assert torch.equal(written, expected)


# -- under the scheduler ------------------------------------------------------

# Each way differs in several things, because there are many models.
CHOSEN_WAYS = [WAYS["recomputed, ahead"], WAYS["swapped, ahead"] | WAYS["in small pieces"]]
DRAWN = Sampling(temperature=0.9)


def every_runner() -> list[Any]:
    """Of the backends that differ in their attention or weights alone, the first."""
    different = {backend.support.backend: backend for backend in reversed(backends())}
    plain = [case for case in cases() if case.variant == "plain"]
    return [pair for backend in different.values() for pair in pairs_of(backend, plain)]


def tokens(backend: ModelBackend, case: Case, depth: int = 1, **changes: Any) -> dict[str, Any]:
    """Of each request; and whether the schedule was as tight as it should be."""
    config = backend.compared(case).model.config
    groups = layer_groups(config.windows)
    settings = {**SETTINGS, **changes, "attention_groups": attention_groups(groups)}
    settings["num_blocks"] *= len(groups)
    scheduler = Scheduler.create(**for_states(settings, config))
    runner = backend.runner(case, scheduler)
    got = drive(scheduler, runner, requests(12, sampling=DRAWN, seed=11), depth)
    # Windows give blocks back, so that a pool is less tight.
    if changes.get("num_blocks") == TIGHT["num_blocks"] and groups.windows == (None,):
        assert scheduler.stats.preemptions, "the pool was not tight"
    return got


@pytest.mark.parametrize("pair", every_runner())
def test_tokens_do_not_depend_on_the_schedule(pair: tuple[ModelBackend, Case]) -> None:
    backend, case = pair
    plainly = tokens(backend, case)
    for way in CHOSEN_WAYS:
        assert tokens(backend, case, **way) == plainly, way


# -- the suite itself ---------------------------------------------------------


def test_architectures_are_found() -> None:
    assert {"llama", "qwen2", "qwen3", "gemma3", "mistral"} <= set(architectures())


def test_an_architecture_is_one_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The example of the guide, put where the guide says, runs through the suite."""
    _, source = blocks(GUIDE.read_text(encoding="utf-8"))[0]
    (tmp_path / "starling.py").write_text(source)
    package = paceline.runner.models.architectures
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path)])
    case = Case("starling")
    try:
        assert "starling" in architectures()
        model = replace(spec_of(case), architecture="")  # the same under another name is judged too
        assert model in [replace(spec_of(one), architecture="") for one in cases()]
        for backend in NATIVE_BACKENDS if is_available() else []:
            follow(backend.compared(case), {"a": 9}, [{"a": 6}, {"a": 1}, ("swap", "a"), {"a": 2}])
    finally:
        del sys.modules["paceline.runner.models.architectures.starling"]


def test_backends_are_found() -> None:
    names = {backend.name for backend in backends()}
    assert {"torch, paged", "native int8", "native int4"} <= names


@pytest.mark.parametrize(
    "backend",
    [pytest.param(backend, id=backend.name, marks=backend.marks) for backend in backends()],
)
def test_a_model_that_it_does_not_compute_is_refused(backend: ModelBackend) -> None:
    check_refusals(backend, backend.cases())


@pytest.mark.parametrize("backend", backends(), ids=lambda backend: backend.name)
def test_a_feature_that_no_backend_knows_is_refused(backend: ModelBackend) -> None:
    spec = spec_of(Case("llama"))
    assert backend.support.supports(spec) is None
    assert "attention.sink" in str(backend.support.supports(with_sink(spec, 30.0)))
