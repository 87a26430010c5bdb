"""Attention by the name of its backend."""

import sys
from dataclasses import replace

import pytest
import torch

from paceline.core.errors import ConfigError
from paceline.runner.attention.paged import Paged
from paceline.runner.attention.sdpa import Sdpa
from paceline.runner.attention_backend import (
    Attention,
    AttentionSupport,
    Prepared,
    check,
    load,
    load_for,
)
from paceline.runner.batch import Batch
from paceline.runner.kv_store import KVStore
from tests.runner.support import tiny


def test_found_by_module_name_or_dotted_path() -> None:
    assert isinstance(load("paged"), Paged)
    assert isinstance(load("sdpa"), Sdpa)
    assert isinstance(load("paceline.runner.attention.sdpa.Sdpa"), Sdpa)


@pytest.mark.parametrize("name", ["flash", "no.such.Backend", "paceline.runner.batch.None", ""])
def test_a_name_that_leads_nowhere(name: str) -> None:
    with pytest.raises(ConfigError, match="attention backend"):
        load(name)


def test_a_backend_of_an_extra_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flashinfer", None)
    monkeypatch.delitem(sys.modules, "paceline.runner.attention.flashinfer", raising=False)
    wanted = r"no attention backend 'flashinfer': .*; pip install 'paceline\[flashinfer\]'"
    with pytest.raises(ConfigError, match=wanted):
        load("flashinfer")


def test_a_backend_that_lacks_what_a_model_needs_is_refused_by_name() -> None:
    plain = tiny()
    other = replace(plain, score_cap=30.0, windows=(4, *plain.windows[1:]))

    class Plain(Paged):
        support = AttentionSupport(caps=False, windows=False, head_dims=(64,))

    check("paged", Paged(), other, torch.float32)
    wanted = f"'plain' does not support head size {plain.head_dim}, sliding windows, scores capped"
    with pytest.raises(ConfigError, match=wanted):
        check("plain", Plain(), other, torch.float32)


def test_a_backend_of_another_device_is_refused() -> None:
    with pytest.raises(ConfigError, match="'paged' does not run on cuda; use 'triton'"):
        load_for("paged", "cuda", "triton")


class Undeclared(Attention):
    def prepare(self, batch: Batch, kv: KVStore) -> Prepared:
        raise NotImplementedError


class Graphless(Undeclared):
    support = AttentionSupport(device="cuda")


class Unmixed(Undeclared):
    support = AttentionSupport(mixed_graphs=True)


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        (Undeclared, "does not declare its support"),
        (Graphless, "has no prepare_graph"),
        (Unmixed, "has no prepare_mixed_graph"),
    ],
)
def test_a_backend_that_lacks_what_it_declares(kind: type[Attention], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        load(f"{__name__}.{kind.__name__}")
