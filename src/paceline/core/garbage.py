"""Pauses Python's search for unreachable objects while many objects are created that stay."""

import gc
from collections.abc import Generator
from contextlib import contextmanager


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
