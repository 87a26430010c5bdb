"""`paceline list`, `paceline rm` and `paceline pull`: what they print, and wrong names."""

import json
from collections.abc import Generator
from pathlib import Path

import pytest

from paceline.cli.main import main
from tests.hub.support import Hub, configured, serving


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Path]:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "own"))
    with serving(Hub()) as hub, configured(hub, tmp_path / "hub"):
        yield tmp_path / "own"


@pytest.fixture
def smollm2(cache: Path) -> Path:
    file = cache / "models" / "smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"GGUF" * 1_000_000)
    return file


def test_models_are_listed_with_size_and_path(
    smollm2: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["list"]) == 0
    assert capsys.readouterr().out == f"smollm2        4.0 MB  {smollm2}\n"
    assert main(["list", "--json"]) == 0
    expected = [{"name": "smollm2", "path": str(smollm2), "size_bytes": 4_000_000}]
    assert json.loads(capsys.readouterr().out) == expected


def test_a_removed_model_is_no_longer_listed(
    smollm2: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["rm", "smollm2"]) == 0
    assert main(["list"]) == 0
    removed, listed = capsys.readouterr().out.splitlines()
    assert removed == "removed smollm2, 4.0 MB"
    assert listed == "no models on this machine; `paceline pull` downloads one"


def test_a_model_that_is_not_there_cannot_be_removed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rm", "smollm2"]) == 2
    error = capsys.readouterr().err
    assert error == "paceline rm: no model 'smollm2' on this machine; there are: none\n"


@pytest.mark.parametrize("command", ["pull", "serve", "chat"])
def test_an_empty_name_is_not_the_default_model(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main([command, ""])
    assert caught.value.code == 2
    assert "the name of the model is empty" in capsys.readouterr().err
