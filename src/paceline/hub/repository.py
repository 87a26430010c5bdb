"""Fetches the files that an engine needs from a repository of Hugging Face."""

import errno
import re
import shutil
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path
from threading import Lock
from typing import Any, cast

from huggingface_hub import DryRunFileInfo, constants, snapshot_download
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
from paceline.hub.errors import FetchError
from paceline.hub.progress import Progress, silent

NAME = re.compile(r"(?P<repository>[\w][\w.-]*/[\w][\w.-]*)(@(?P<revision>[\w][\w./-]*))?")
WEIGHTS = "model*.safetensors"  # other .safetensors files repeat the weights in another layout
NEEDED = ("config.json", "tokenizer.json", WEIGHTS)
WANTED = (
    *NEEDED,
    "generation_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "model.safetensors.index.json",
)
IN_FOLDERS = "*/*"
GB = 1_000_000_000
# The error class of the HTTP library that huggingface_hub uses, which differs by its version.
TransportError = cast(type[Exception], HfHubHTTPError.__bases__[0])


def fetch_repository(name: str, progress: Progress) -> Path:
    """The folder of `owner/name` or `owner/name@revision` in the cache of huggingface_hub.

    The hub is asked which commit the revision points to, and what the cache lacks is downloaded.
    If the hub cannot be reached, a complete copy in the cache is used.
    """
    try:
        files: list[DryRunFileInfo] = snapshot(name, dry_run=True, tqdm_class=counting(silent, 0))
        check_complete(name, [file.filename for file in files])
        total = sum(file.file_size or 0 for file in files if file.will_download)
        check_space(name, total)
        folder = Path(snapshot(name, tqdm_class=counting(progress, total)))
        if total:
            progress(total, total)
        return folder
    except HFValidationError as error:
        raise ConfigError(f"{name} is neither a path nor a repository: {error}") from error
    except DryRunError as error:
        return cached(name, error.__cause__ or error)
    except (TransportError, LocalEntryNotFoundError) as error:
        raise FetchError(reason(name, error)) from error
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise FetchError(f"the disk is full: {constants.HF_HUB_CACHE}") from error
        raise


def snapshot(name: str, **options: Any) -> Any:
    """Call the library for the files that an engine needs."""
    parts = NAME.fullmatch(name)
    assert parts is not None, f"{name!r} does not name a repository"
    return snapshot_download(
        parts["repository"],
        revision=parts["revision"],
        allow_patterns=list(WANTED),
        ignore_patterns=IN_FOLDERS,
        **options,
    )


def cached(name: str, failure: BaseException) -> Path:
    """The copy in the cache, if it is complete; otherwise report why the hub did not answer."""
    try:
        folder = Path(snapshot(name, local_files_only=True))
    except LocalEntryNotFoundError:
        raise FetchError(reason(name, failure)) from failure
    check_complete(name, [file.name for file in folder.iterdir()])
    return folder


def check_complete(name: str, files: Sequence[str]) -> None:
    for pattern in NEEDED:
        if not any(fnmatch(file, pattern) for file in files):
            raise FetchError(f"{name} has no {pattern}, so it cannot be run")


def check_space(name: str, needed_bytes: int) -> None:
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


def reason(name: str, error: BaseException) -> str:
    """What went wrong, and what to do about it."""
    parts = NAME.fullmatch(name)
    assert parts is not None
    repository, endpoint = parts["repository"], constants.ENDPOINT
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
            return f"{repository} has no revision {parts['revision'] or 'main'!r}"
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
