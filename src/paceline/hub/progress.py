"""How a download reports its progress."""

from collections.abc import Callable

Progress = Callable[[int, int | None], None]  # bytes done, bytes in all if known


def silent(_done: int, _total: int | None) -> None:
    """Report nothing."""
