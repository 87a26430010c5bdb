"""Attention by the name of its backend."""

import sys
from dataclasses import replace

import pytest
import torch

from paceline.core.errors import ConfigError
from paceline.runner.attention.paged import Paged
from paceline.runner.attention.sdpa import Sdpa
from paceline.runner.attention_backend import AttentionSupport, check, load, load_for
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

    check(Paged(), other, torch.float32)
    wanted = f"'plain' does not support head size {plain.head_dim}, sliding windows, scores capped"
    with pytest.raises(ConfigError, match=wanted):
        check(Plain(), other, torch.float32)


def test_a_backend_of_another_device_is_refused() -> None:
    with pytest.raises(ConfigError, match="'paged' does not run on cuda; use 'triton'"):
        load_for("paged", "cuda", "triton")
