"""`paceline collect-env`: what is there, and no secrets."""

import json
import platform
from pathlib import Path

import numpy
import pytest

import paceline
from paceline.cli.commands.collect_env import compiler, findings, installed, lines_of
from paceline.cli.main import main
from paceline.core.settings.config import CacheConfig
from paceline.wiring.settings import CPU_DEFAULTS


def test_what_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["collect-env", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["versions"]["paceline"] == paceline.__version__
    assert found["versions"]["numpy"] == numpy.__version__
    assert found["versions"]["python"] == platform.python_version()
    assert found["machine"]["cores"] > 0
    assert found["machine"]["memory_gib"] > 0
    assert found["defaults"]["block_size"] == CacheConfig().block_size
    assert found["defaults"]["drain_s"] > 0
    assert found["defaults"]["max_num_seqs"] == CPU_DEFAULTS["max_num_seqs"]
    assert found["defaults"]["max_num_batched_tokens"] == CPU_DEFAULTS["max_num_batched_tokens"]
    assert found["defaults"]["max_model_len"] == "the model's own"
    assert Path(found["machine"]["kernels"]).is_file()
    assert found["machine"]["cpu_flags"]
    assert found["machine"]["compiler"]


def test_a_machine_without_a_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CC", str(tmp_path / "no-compiler"))
    assert compiler() is None


def test_as_text_what_is_absent_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["collect-env"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if not line.startswith(" ")] == [
        "versions:",
        "machine:",
        "environment:",
        "defaults:",
    ]
    assert f"  numpy: {numpy.__version__}" in lines
    assert list(lines_of({"a": {"b": None, "c": 0}})) == ["a:", "  c: 0"]


def test_secrets_are_named_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_API_KEY", "sesame")
    monkeypatch.setenv("PACELINE_CACHE", "/somewhere")
    monkeypatch.setenv("UNRELATED", "1")
    found = findings()["environment"]
    assert found["PACELINE_API_KEY"] == "(set)"
    assert found["PACELINE_CACHE"] == "/somewhere"
    assert "UNRELATED" not in found


def test_a_package_that_is_not_there() -> None:
    assert installed("no-such-package") is None
