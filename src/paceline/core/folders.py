"""Where files stay that can be had again."""

import os
from collections.abc import Mapping
from pathlib import Path


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """PACELINE_CACHE, or a folder in the user's cache."""
    if own := environ.get("PACELINE_CACHE"):
        return Path(own).expanduser()
    shared = environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(shared).expanduser() / "paceline"
