"""Attention by the name of its backend."""

import sys
from pkgutil import iter_modules

import pytest

from paceline.core.errors import ConfigError
from paceline.runner import attention
from paceline.runner.attention.backend import KNOWN, load
from paceline.runner.attention.paged import Paged
from paceline.runner.attention.sdpa import Sdpa


def test_found_by_module_name_or_dotted_path() -> None:
    assert isinstance(load("paged"), Paged)
    assert isinstance(load("sdpa"), Sdpa)
    assert isinstance(load("paceline.runner.attention.sdpa.Sdpa"), Sdpa)


def test_every_one_there_is_can_be_named() -> None:
    there = {one.name for one in iter_modules(attention.__path__)}
    assert there == {*KNOWN, "backend"}


@pytest.mark.parametrize("name", ["flash", "no.such.Backend", "paceline.runner.batch.None", ""])
def test_a_name_that_leads_nowhere(name: str) -> None:
    with pytest.raises(ConfigError, match="attention backend"):
        load(name)


def test_a_backend_of_an_extra_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flashinfer", None)
    monkeypatch.delitem(sys.modules, "paceline.runner.attention.flashinfer", raising=False)
    wanted = r"'flashinfer' cannot be imported: .*; pip install 'paceline\[flashinfer\]'"
    with pytest.raises(ConfigError, match=wanted):
        load("flashinfer")
