"""`--config FILE`: which values it sets, what wins over it, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from paceline.cli.main import main

YAML = """
model: small
port: 81
max-num-seqs: 4
enable_prefix_caching: false
tenant_weight: {alice: 2, bob: 0.5}
served_model_name: [x, y]
api_keys: one
"""
TOML = """
model = "small"
port = 81
max_num_seqs = 4
enable-prefix-caching = false
tenant-weight = { alice = 2, bob = 0.5 }
served-model-name = ["x", "y"]
api-key = "one"
"""
SETTINGS = {
    "port": 81,
    "max_num_seqs": 4,
    "enable_prefix_caching": False,
    "tenant_weights": {"alice": 2.0, "bob": 0.5},
    "aliases": ("x", "y"),
    "api_keys": ("one",),
}


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What `serve` was called with."""
    found: dict[str, Any] = {}
    monkeypatch.delenv("PACELINE_API_KEY", raising=False)

    def serve(model: str, *, host: str, uds: str, progress: Any, **settings: Any) -> None:
        found.update(settings, model=model)

    monkeypatch.setattr("paceline.wiring.processes.serving.serve", serve)
    return found


@pytest.mark.parametrize(("name", "text"), [("c.yaml", YAML), ("c.YML", YAML), ("c.toml", TOML)])
def test_a_file_sets_options_by_their_names(
    name: str, text: str, tmp_path: Path, served: dict[str, Any]
) -> None:
    (tmp_path / name).write_text(text)
    assert main(["serve", "--config", str(tmp_path / name)]) == 0
    assert served == {"model": "small", **SETTINGS}


def test_flags_win_over_the_environment_and_that_over_the_file(
    tmp_path: Path, served: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(YAML)
    monkeypatch.setenv("PACELINE_API_KEY", "two three")
    words = ["--port", "82", "--enable-prefix-caching", "--served-model-name", "z"]
    assert main(["serve", "other", "--config", str(file), *words]) == 0
    assert served["model"] == "other"
    assert served["port"] == 82
    assert served["enable_prefix_caching"] is True
    assert served["aliases"] == ("z",)
    assert served["api_keys"] == ("two", "three")
    assert main(["serve", "--config", str(file), "--model", "flag", "--api-key", "four"]) == 0
    assert (served["model"], served["api_keys"]) == ("flag", ("four",))


def test_a_mapping_is_json_where_an_option_takes_one(
    tmp_path: Path, served: dict[str, Any]
) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("speculative-config: {method: ngram, num_speculative_tokens: 3}\n")
    assert main(["serve", "--config", str(file)]) == 0
    assert json.loads(served["speculative_config"]) == {
        "method": "ngram",
        "num_speculative_tokens": 3,
    }


def test_an_empty_file_sets_nothing(tmp_path: Path, served: dict[str, Any]) -> None:
    (tmp_path / "c.yaml").write_text("# nothing\n")
    assert main(["serve", "--config", str(tmp_path / "c.yaml")]) == 0
    assert served == {"model": "smollm2", "port": 8000}


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("c.yaml", "prt: 1", "unknown key 'prt'; did you mean 'port'?"),
        ("c.yaml", "config: other.yaml", "unknown key 'config'"),
        ("c.yaml", "port: http", "port is 'http': "),
        ("c.yaml", "port: 99999", "port is 99999: "),
        ("c.yaml", "port: true", "port is True: "),
        ("c.yaml", "max-num-seqs: 2.5", "max-num-seqs is 2.5: "),
        ("c.yaml", "timings: often", "timings is 'often': "),
        ("c.yaml", "log_format: xml", "'xml' is not one of 'text', 'json'"),
        ("c.yaml", "port: [1]", "port is [1]; it must be a text, a number, true or false"),
        ("c.yaml", "port:", "port is None; it must be"),
        ("c.yaml", "max-num-seqs: 1\nmax_num_seqs: 2", "sets --max-num-seqs twice"),
        ("c.yaml", "- 3", "must have a line NAME: VALUE for each option"),
        ("c.yaml", "a: [", "is not YAML: line 1, column 5: "),
        ("c.yaml", "a: \0", "is not YAML: "),
        ("c.toml", "a = ", "is not TOML: "),
        ("c.ini", "", "c.ini must end in .yaml, .yml, .toml"),
        ("c.toml", None, "cannot be read: No such file"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(
    name: str,
    text: str | None,
    complaint: str,
    tmp_path: Path,
    served: dict[str, Any],
    capsys: pytest.CaptureFixture[str],
) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(SystemExit) as caught:
        main(["serve", "--config", str(tmp_path / name)])
    assert caught.value.code == 2
    assert complaint in capsys.readouterr().err
    assert served == {}
