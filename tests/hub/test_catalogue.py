import re

import pytest

from paceline.hub.catalogue import DEFAULT, MODELS, REPOSITORIES, find, repository_named, suggestion
from paceline.hub.repository_files import RepositoryName


def test_the_default_is_in_the_catalogue() -> None:
    model = find(DEFAULT)
    assert model is not None
    assert model.licence == "Apache-2.0"


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_entries_are_complete(model: object) -> None:
    entry = next(one for one in MODELS if one is model)
    assert re.fullmatch(r"[0-9a-f]{64}", entry.sha256)
    assert entry.size_bytes > 0
    assert entry.wheel_bytes > 0
    assert entry.member.endswith(".gguf")
    assert all(name == name.lower() and "/" not in name for name in entry.names)


def test_names_are_told_apart() -> None:
    names = [name for model in MODELS for name in model.names]
    names += [one.name for one in REPOSITORIES]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("name", ["smollm2", "SmolLM2", "SmolLM2-135M-Instruct"])
def test_a_model_is_found_by_any_of_its_names(name: str) -> None:
    assert find(name) is find("smollm2")


def test_near_names_are_offered() -> None:
    assert find("smolm2") is None
    assert suggestion("smolm2") == suggestion("SMOLM2")
    assert suggestion("smolm2").startswith("did you mean smollm2, ")
    assert suggestion("qwen3-0.5b").startswith("did you mean qwen3-0.6b")
    names = [name for model in MODELS for name in model.names]
    names += [one.name for one in REPOSITORIES]
    assert suggestion("?").startswith("give a .gguf file, a folder, owner/name")
    assert suggestion("?").endswith(f"or one of {', '.join(names)}")


def test_short_names_stand_for_repositories() -> None:
    assert repository_named("Qwen3-0.6B") == "Qwen/Qwen3-0.6B"
    assert repository_named("smollm2") is None
    for one in REPOSITORIES:
        parsed = RepositoryName.parse(one.repository)
        assert parsed is not None
        assert (parsed.revision, parsed.gguf) == (None, None)
        assert one.name == one.name.lower()
        assert one.megabytes > 0
        assert one.licence
