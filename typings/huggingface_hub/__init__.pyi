# The part of the library that paceline uses, without the types that it leaves open.
from typing import Any

from huggingface_hub import constants as constants

class DryRunFileInfo:
    filename: str
    file_size: int | None
    will_download: bool

def snapshot_download(repo_id: str, **options: Any) -> Any: ...
