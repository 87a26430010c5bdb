"""Keeps Python's search for unreachable objects short."""

import gc
from collections.abc import Generator
from contextlib import contextmanager

# New objects between two searches of the youngest; such searches between two of the middle
# generation; those between two searches of all. The last take 100 ms with 1,000 open requests.
THRESHOLDS = 1000, 10, 1000


@contextmanager
def collection_paused() -> Generator[None]:
    """Imports and vocabularies create a million objects, all of which would be searched often."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def keep_heap() -> None:
    """Never search the objects that exist now: they stay. Search all newer ones rarely.

    Call it when everything is loaded, in a process that serves requests.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
