from collections.abc import Generator
from pathlib import Path

import pytest

from paceline.core.errors import ConfigError
from paceline.core.system.files import packed_folder
from paceline.hub.local_models import LocalModel, local_models, remove
from paceline.hub.pull import pull
from tests.hub.support import Hub, carried, configured, serving

FILES = {"config.json": b"{ }", "tokenizer.json": b"{}", "model.safetensors": b"w" * 500}
TINY = [carried()]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Path]:
    """A named model, and a repository of which one revision was downloaded."""
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "own"))
    file = tmp_path / "own" / "models" / "tiny" / "tiny.gguf"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"GGUF")
    with serving(Hub(files=dict(FILES))) as hub, configured(hub, tmp_path / "hub"):
        pull("owner/small")
        yield tmp_path


def test_named_models_and_repositories_are_listed(cache: Path) -> None:
    named, repository = local_models(TINY)
    assert named == LocalModel("tiny", cache / "own" / "models" / "tiny" / "tiny.gguf", 4)
    assert (repository.name, repository.size_bytes) == ("owner/small", 505)


def test_a_repository_without_weights_is_not_a_model(cache: Path) -> None:
    for file in (cache / "hub").rglob("model.safetensors"):
        file.unlink()
    assert [model.name for model in local_models(TINY)] == ["tiny"]


@pytest.mark.parametrize(
    ("name", "left"),
    [("tiny", ["owner/small"]), ("tiny-instruct", ["owner/small"]), ("owner/small", ["tiny"])],
)
def test_a_removed_model_is_gone(cache: Path, name: str, left: list[str]) -> None:
    gone = remove(name, TINY)
    assert not gone.path.exists()
    assert [model.name for model in local_models(TINY)] == left
    with pytest.raises(
        ConfigError, match=f"no model '{name}' on this machine; there are: {left[0]}"
    ):
        remove(name, TINY)


def test_packed_weights_go_with_the_model(cache: Path) -> None:
    (downloaded,) = (cache / "hub").rglob("snapshots/*/model.safetensors")
    files = {"tiny": cache / "own" / "models" / "tiny" / "tiny.gguf", "owner/small": downloaded}
    packed = {name: cache / "own" / packed_folder(file) for name, file in files.items()}
    for folder in packed.values():
        folder.mkdir(parents=True)
    for name, folder in packed.items():
        assert folder.exists()
        remove(name, TINY)
        assert not folder.exists()


def test_one_revision_cannot_be_removed_alone(cache: Path) -> None:
    with pytest.raises(ConfigError, match="removed as a whole: name 'owner/small'"):
        remove("owner/small@main", TINY)


def test_an_empty_machine_has_no_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))
    with serving(Hub()) as hub, configured(hub, tmp_path / "nothing"):
        assert local_models(TINY) == []
        with pytest.raises(ConfigError, match="there are: none"):
            remove("tiny", TINY)
