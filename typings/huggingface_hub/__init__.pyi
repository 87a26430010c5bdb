# The part of the library that paceline uses, without the types that it leaves open.
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from huggingface_hub import constants as constants

class DryRunFileInfo:
    filename: str
    file_size: int | None
    will_download: bool

class CachedFileInfo:
    file_name: str
    file_path: Path

class CachedRevisionInfo:
    files: Iterable[CachedFileInfo]

class CachedRepoInfo:
    repo_id: str
    repo_type: str
    repo_path: Path
    size_on_disk: int
    revisions: Iterable[CachedRevisionInfo]

class HFCacheInfo:
    repos: Iterable[CachedRepoInfo]

class HfApi:
    def __init__(self, endpoint: str | None = None) -> None: ...
    def list_repo_files(self, repo_id: str, *, revision: str | None = None) -> list[str]: ...

def scan_cache_dir(cache_dir: str | Path | None = None) -> HFCacheInfo: ...
def snapshot_download(repo_id: str, **options: Any) -> Any: ...
