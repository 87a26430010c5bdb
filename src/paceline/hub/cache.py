"""File names and locks for a download, so that an incomplete file never looks complete."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock


def beside(target: Path, suffix: str) -> Path:
    """A name next to the target, on the same file system, so that a rename is atomic."""
    return target.with_name(target.name + suffix)


@contextmanager
def locked(target: Path) -> Generator[None]:
    """One process at a time fetches a target; the others wait, and then find it complete.

    The system releases the lock when its process ends.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(beside(target, ".lock")):
        yield
