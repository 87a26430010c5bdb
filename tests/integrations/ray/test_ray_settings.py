"""Settings of a model under Ray Serve."""

from typing import Any

import pytest

from paceline.core.errors import ConfigError
from paceline.integrations.ray.application import API_KEYS, RaySettings, read


def test_texts_of_a_command_line_get_their_types() -> None:
    given = {"max_num_seqs": "64", "num_gpus": "0.5", "docs": "true", "model": "7", "aliases": "8"}
    typed = {"max_num_seqs": 64, "num_gpus": 0.5, "docs": True, "model": "7", "aliases": ("8",)}
    assert read(given) == typed
    assert read({"aliases": ["a", "b"], "device": "cpu"}) == {
        "aliases": ("a", "b"),
        "device": "cpu",
    }


def test_keys_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(API_KEYS, "one two")
    assert read({})["api_keys"] == ("one", "two")
    assert read({"api_keys": ["three"]})["api_keys"] == ("three",)


@pytest.mark.parametrize(
    "wrong",
    [
        {"min_replicas": 0},
        {"min_replicas": 2, "max_replicas": 1},
        {"num_gpus": -1.0},
        {"entries": "two"},
    ],
)
def test_wrong_numbers_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(reversed(wrong))):
        RaySettings(**wrong)
