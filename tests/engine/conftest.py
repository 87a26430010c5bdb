"""Fixtures of the engine's tests."""

from collections.abc import Iterator
from signal import SIGINT, default_int_handler, signal

import pytest


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Who runs in the background may be handed down that interrupts are ignored."""
    before = signal(SIGINT, default_int_handler)
    yield
    signal(SIGINT, before)
