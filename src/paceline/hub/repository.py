"""Fetches a repository of a hub into a folder that holds what an engine needs, and no more."""

import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any
from urllib.parse import quote

from paceline.hub.cache import beside, locked
from paceline.hub.errors import FetchError
from paceline.hub.http import RemoteFile, Site
from paceline.hub.progress import Progress

NAME = re.compile(r"(?P<repository>[\w][\w.-]*/[\w][\w.-]*)(@(?P<revision>[\w][\w./-]*))?")
WEIGHTS = "model*.safetensors"  # others of that ending repeat them in another layout
NEEDED = ("config.json", "tokenizer.json", WEIGHTS)
WANTED = (
    *NEEDED,
    "generation_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "model.safetensors.index.json",
)


@dataclass(frozen=True, slots=True)
class Listing:
    """The files of one commit."""

    commit: str
    files: tuple[RemoteFile, ...]

    @property
    def total_bytes(self) -> int | None:
        sizes = [file.size_bytes for file in self.files]
        return None if None in sizes else sum(size for size in sizes if size is not None)


def fetch_repository(name: str, cache: Path, progress: Progress, site: Site) -> Path:
    """`owner/name`, or `owner/name@revision`; the folder appears when it is complete."""
    parts = NAME.fullmatch(name)
    assert parts is not None, f"{name!r} does not name a repository"
    target = cache / "repositories" / name.replace("/", "--")
    if not target.is_dir():
        with locked(target):
            if not target.is_dir():
                repository, revision = parts["repository"], parts["revision"] or "main"
                fetch_to(target, repository, listing(site, repository, revision), progress, site)
    return target


def fetch_to(
    target: Path, repository: str, listed: Listing, progress: Progress, site: Site
) -> None:
    """Files gather in a folder of their commit, where a later attempt goes on."""
    partial = beside(target, f".partial-{listed.commit}")
    for stale in target.parent.glob(f"{target.name}.partial-*"):
        if stale != partial:
            shutil.rmtree(stale)
    partial.mkdir(exist_ok=True)
    before = 0
    for file in listed.files:
        place = partial / file.name
        if not place.exists():
            path = f"/{quote(repository)}/resolve/{listed.commit}/{quote(file.name)}"
            site.download(
                path,
                file,
                place,
                lambda done, before=before: progress(before + done, listed.total_bytes),
            )
        before += place.stat().st_size
        progress(before, listed.total_bytes)
    os.replace(partial, target)


def listing(site: Site, repository: str, revision: str) -> Listing:
    path = f"/api/models/{quote(repository)}/revision/{quote(revision, safe='')}?blobs=true"
    answer = site.json(path)
    try:
        files = [remote_file(entry) for entry in answer["siblings"]]
        commit = str(answer["sha"])
    except (KeyError, TypeError, AttributeError) as error:
        raise FetchError(f"{site.endpoint} lists {repository} in an unknown way: {error}") from None
    if not commit.isalnum():  # it becomes part of a path
        raise FetchError(f"{site.endpoint} lists {repository} at {commit!r}, which is no commit")
    return Listing(commit, wanted(repository, files))


def remote_file(entry: dict[str, Any]) -> RemoteFile:
    large: dict[str, Any] = entry.get("lfs") or {}
    name, size = entry["rfilename"], entry.get("size")
    if not isinstance(name, str) or not isinstance(size, int | None):
        raise TypeError(f"{name!r} of {size!r} bytes")
    return RemoteFile(name, size, large.get("sha256"))


def wanted(repository: str, files: Sequence[RemoteFile]) -> tuple[RemoteFile, ...]:
    """Of the files that lie in no folder. Small ones first: weights come when all is well."""
    here = [file for file in files if Path(file.name).name == file.name]
    for pattern in NEEDED:
        if not any(fnmatch(file.name, pattern) for file in here):
            raise FetchError(f"{repository} has no {pattern}, so it cannot be run")
    chosen = [file for file in here if any(fnmatch(file.name, one) for one in WANTED)]
    return tuple(sorted(chosen, key=lambda file: (fnmatch(file.name, WEIGHTS), file.name)))
