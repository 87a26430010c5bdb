"""The folder where fetched models stay, and who may write into it."""

import fcntl
import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    if own := environ.get("PACELINE_CACHE"):
        return Path(own).expanduser()
    shared = environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(shared).expanduser() / "paceline"


def beside(target: Path, suffix: str) -> Path:
    """A name next to the target, on the same file system, so that a rename is atomic."""
    return target.with_name(target.name + suffix)


@contextmanager
def locked(target: Path) -> Generator[None]:
    """One process at a time fetches a target; the others wait, and then find it there.

    The lock goes with the process that holds it, however that ends. Its file stays, since
    removing it would give two waiting processes two different locks.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with beside(target, ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
