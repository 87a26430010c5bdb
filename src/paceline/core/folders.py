"""Where files stay that can be had again."""

import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """PACELINE_CACHE, or a folder in the user's cache."""
    if own := environ.get("PACELINE_CACHE"):
        return Path(own).expanduser()
    shared = environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(shared).expanduser() / "paceline"


@contextmanager
def placed(target: Path) -> Generator[Path, None, None]:
    """Where to write a file that appears under its own name when it is whole: several processes
    may do so at once, and none sees a part."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=target.parent) as folder:
        built = Path(folder) / target.name
        yield built
        built.replace(target)
