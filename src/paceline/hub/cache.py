"""File names and locks for a download, so that an incomplete file never looks complete."""

import fcntl
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


def beside(target: Path, suffix: str) -> Path:
    """A name next to the target, on the same file system, so that a rename is atomic."""
    return target.with_name(target.name + suffix)


@contextmanager
def locked(target: Path) -> Generator[None]:
    """One process at a time fetches a target; the others wait, and then find it complete.

    The system releases the lock when its process ends. The lock file stays: if it were removed,
    two waiting processes could hold two different locks.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with beside(target, ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
