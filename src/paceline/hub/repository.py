"""Fetches the files that an engine needs from a repository of Hugging Face."""

import errno
import shutil
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from threading import Lock
from typing import Any, cast

from huggingface_hub import DryRunFileInfo, HfApi, constants, snapshot_download
from huggingface_hub.errors import (
    DryRunError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import tqdm

from paceline.core.errors import ConfigError
from paceline.hub.repository_files import (
    FetchError,
    Progress,
    RepositoryName,
    choose_gguf,
    missing,
    silent,
)

WEIGHTS = "model*.safetensors"  # other .safetensors files repeat the weights in another layout
NEEDED = ("config.json", "tokenizer.json", WEIGHTS)
WANTED = (
    *NEEDED,
    "generation_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
    "preprocessor_config.json",
    "processor_config.json",
    "model.safetensors.index.json",
    "modules.json",
    "[0-9]_*/config.json",  # modules of sentence-transformers, such as 1_Pooling and 2_Dense
    "[0-9]_*/model.safetensors",
)
IN_FOLDERS = "model*/*"  # what WEIGHTS matches too, since a star matches a slash
NO_FILE = ("/",)  # a pattern that matches nothing
GB = 1_000_000_000
# The error class of the HTTP library that huggingface_hub uses, which differs by its version.
TransportError = cast(type[Exception], HfHubHTTPError.__bases__[0])


def fetch_repository(
    name: RepositoryName, progress: Progress, check: Callable[[Path], None]
) -> Path:
    """The model folder, or the GGUF file, of a repository in the cache of huggingface_hub.

    The hub is asked which commit the revision points to, and what the cache lacks is downloaded.
    `check` sees config.json before the weights are downloaded; it raises ConfigError for a model
    that cannot be run. If the hub cannot be reached, a complete copy in the cache is used.
    """
    with reported(name):
        return fetch_gguf(name, progress) if name.gguf else fetch_folder(name, progress, check)


def fetch_folder(name: RepositoryName, progress: Progress, check: Callable[[Path], None]) -> Path:
    try:
        files = dry_run(name, WANTED)
    except DryRunError as error:
        return cached_folder(name, error.__cause__ or error)
    if pattern := lacking([file.filename for file in files]):
        raise FetchError(f"{name} cannot be run: {missing(pattern, listing(name), f'{name}:')}")
    check_space(name, missing_bytes(files))
    config = snapshot(name, ("config.json",), tqdm_class=counting(silent, 0))
    check(Path(config) / "config.json")
    return download(name, WANTED, files, progress)


def fetch_gguf(name: RepositoryName, progress: Progress) -> Path:
    """One file. A copy in the cache is used if the hub cannot be reached."""
    try:
        files = listing(name)
    except (OfflineModeIsEnabled, TransportError) as error:
        folder = cached(name, NO_FILE, error)  # the library refuses a copy that lacks any file
        paths = (path for path in folder.rglob("*") if path.is_file())
        return folder / choose_gguf(name, [str(path.relative_to(folder)) for path in paths])
    chosen = choose_gguf(name, files)
    return download(name, (chosen,), dry_run(name, (chosen,)), progress) / chosen


def download(
    name: RepositoryName,
    patterns: Sequence[str],
    files: Sequence[DryRunFileInfo],
    progress: Progress,
) -> Path:
    """The folder with those files, after what the cache lacks of them has arrived."""
    total = missing_bytes(files)
    check_space(name, total)
    folder = Path(snapshot(name, patterns, tqdm_class=counting(progress, total)))
    if total:
        progress(total, total)
    return folder


@contextmanager
def reported(name: RepositoryName) -> Generator[None]:
    """Turn the errors of the library into errors that say what to do."""
    try:
        yield
    except HFValidationError as error:
        raise ConfigError(f"{name} is neither a path nor a repository: {error}") from error
    except DryRunError as error:
        raise FetchError(reason(name, error.__cause__ or error)) from error
    except (TransportError, LocalEntryNotFoundError) as error:
        raise FetchError(reason(name, error)) from error
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise FetchError(f"the disk is full: {constants.HF_HUB_CACHE}") from error
        raise


def dry_run(name: RepositoryName, patterns: Sequence[str]) -> list[DryRunFileInfo]:
    """The files that a download would bring, and which of them the cache has."""
    return snapshot(name, patterns, dry_run=True, tqdm_class=counting(silent, 0))


def snapshot(name: RepositoryName, patterns: Sequence[str], **options: Any) -> Any:
    return snapshot_download(
        name.repository,
        revision=name.revision,
        allow_patterns=list(patterns),
        ignore_patterns=None if name.gguf else IN_FOLDERS,
        **options,
    )


def listing(name: RepositoryName) -> list[str]:
    """The paths of all files of a repository."""
    return HfApi(endpoint=constants.ENDPOINT).list_repo_files(
        name.repository, revision=name.revision
    )


def cached_folder(name: RepositoryName, failure: BaseException) -> Path:
    folder = cached(name, WANTED, failure)
    if pattern := lacking([file.name for file in folder.iterdir()]):
        problem = missing(pattern, [file.name for file in folder.iterdir()], f"{name}:")
        raise FetchError(f"{name} cannot be run: {problem}")
    return folder


def cached(name: RepositoryName, patterns: Sequence[str], failure: BaseException) -> Path:
    """The copy in the cache; if files are missing, report why the hub did not answer."""
    try:
        return Path(snapshot(name, patterns, local_files_only=True))
    except LocalEntryNotFoundError:
        raise FetchError(reason(name, failure)) from failure


def lacking(files: Sequence[str]) -> str | None:
    """The pattern of a file that an engine needs and that is not among these."""
    absent = (p for p in NEEDED if not any(fnmatch(file, p) for file in files))
    return next(absent, None)


def missing_bytes(files: Sequence[DryRunFileInfo]) -> int:
    return sum(file.file_size or 0 for file in files if file.will_download)


def check_space(name: RepositoryName, needed_bytes: int) -> None:
    """Fail before the download, not in its last minute."""
    folder = Path(constants.HF_HUB_CACHE)
    while not folder.exists():
        folder = folder.parent
    free_bytes = shutil.disk_usage(folder).free
    if needed_bytes > free_bytes:
        raise FetchError(
            f"the disk is full: {name} needs {needed_bytes / GB:.2f} GB, and "
            f"{constants.HF_HUB_CACHE} has {free_bytes / GB:.2f} GB free; "
            "HF_HOME sets another folder"
        )


def reason(name: RepositoryName, error: BaseException) -> str:
    """What went wrong, and what to do about it."""
    repository, endpoint = name.repository, constants.ENDPOINT
    cause = error.__cause__ if isinstance(error, LocalEntryNotFoundError) else error
    match cause:
        case OfflineModeIsEnabled():
            return f"{name} is not in {constants.HF_HUB_CACHE}, and HF_HUB_OFFLINE is set"
        case GatedRepoError():
            return (
                f"{repository} is gated: accept its conditions on {endpoint}/{repository}, "
                "and set HF_TOKEN to a token of that account"
            )
        case RepositoryNotFoundError():
            return (
                f"{endpoint} has no repository {repository}, or it is private: check the name, "
                "or set HF_TOKEN to a token that may read it"
            )
        case RevisionNotFoundError():
            return f"{repository} has no revision {name.revision or 'main'!r}"
        case HfHubHTTPError():
            return f"{endpoint} answered with status {cause.response.status_code} for {name}"
        case _:
            problem = str(cause or error).strip().partition("\n")[0]
            return (
                f"{endpoint} cannot be reached for {name}: {problem}; check the network, "
                "or set HF_ENDPOINT to a mirror"
            )


def counting(progress: Progress, total: int) -> type[tqdm]:
    """A class in the place of tqdm's that draws nothing and reports the bytes that arrived."""
    lock, arrived = Lock(), dict[int, int]()

    class Counter(tqdm):
        """Several files in several threads update one bar, and there may be two: bytes that
        came over the network and bytes on disk. The larger one counts."""

        def __init__(self, *args: Any, **options: Any) -> None:
            self.is_of_bytes = options.get("unit") == "B"
            super().__init__(*args, **{**options, "disable": True})

        def update(self, n: float | None = 1) -> None:
            if self.is_of_bytes and total:
                with lock:
                    arrived[id(self)] = arrived.get(id(self), 0) + int(n or 0)
                    progress(min(max(arrived.values()), total), total)

    return Counter
