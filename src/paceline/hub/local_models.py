"""The models on this machine: those that `pull` downloaded, by name or from the hub."""

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import CachedRepoInfo, constants, scan_cache_dir
from huggingface_hub.errors import CacheNotFound

from paceline.core.errors import ConfigError
from paceline.core.system.files import cache_folder, packed_folder, places
from paceline.hub.catalogue import MODELS, NamedModel, find, repository_named
from paceline.hub.repository_files import RepositoryName

WEIGHTS = (".safetensors", ".gguf")


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model in a cache.

    name        what `serve` and `pull` take
    path        the file or folder
    size_bytes  on disk
    """

    name: str
    path: Path
    size_bytes: int

    @property
    def megabytes(self) -> float:
        return self.size_bytes / 1e6


def local_models(models: Sequence[NamedModel] = MODELS) -> list[LocalModel]:
    """Named models first, then repositories with weights in the cache of huggingface_hub."""
    named = [local for model in models if (local := local_named(model))]
    return named + [model_of(repo) for repo in cached_repositories()]


def remove(name: str, models: Sequence[NamedModel] = MODELS) -> LocalModel:
    """Delete a model and return what was deleted. A repository goes with all its revisions."""
    if (model := find(name, models)) and (local := local_named(model)):
        shutil.rmtree(local.path.parent)
        remove_packed([local.path])
        return local
    for repo in cached_repositories():
        if repo.repo_id in (name, repository_named(name)):
            local = model_of(repo)
            shutil.rmtree(repo.repo_path)
            remove_packed(weight_files(repo))
            return local
    parsed = RepositoryName.parse(name)
    if parsed and parsed.repository != name:
        raise ConfigError(f"a repository is removed as a whole: name {parsed.repository!r}")
    there = ", ".join(local.name for local in local_models(models)) or "none"
    raise ConfigError(f"no model {name!r} on this machine; there are: {there}")


def local_named(model: NamedModel) -> LocalModel | None:
    path = cache_folder() / "models" / model.name / Path(model.member).name
    return LocalModel(model.name, path, path.stat().st_size) if path.is_file() else None


def cached_repositories() -> list[CachedRepoInfo]:
    try:
        found = scan_cache_dir(constants.HF_HUB_CACHE).repos
    except CacheNotFound:
        return []
    models = (repo for repo in found if repo.repo_type == "model" and has_weights(repo))
    return sorted(models, key=lambda repo: repo.repo_id)


def has_weights(repo: CachedRepoInfo) -> bool:
    return any(weight_files(repo))


def weight_files(repo: CachedRepoInfo) -> list[Path]:
    files = (file for revision in repo.revisions for file in revision.files)
    return [file.file_path for file in files if file.file_name.endswith(WEIGHTS)]


def remove_packed(files: Iterable[Path]) -> None:
    """Delete what was packed from files that are deleted."""
    for file in files:
        for folder in places(packed_folder(file)):
            shutil.rmtree(folder, ignore_errors=True)


def model_of(repo: CachedRepoInfo) -> LocalModel:
    return LocalModel(repo.repo_id, repo.repo_path, repo.size_on_disk)
