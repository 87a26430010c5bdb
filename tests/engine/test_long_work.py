"""Long work on threads: the loop is free meanwhile, and memory returns."""

import asyncio
import threading
from pathlib import Path

import pytest

from paceline.engine.long_work import LongWork


def test_it_runs_on_a_thread_and_returns_or_raises() -> None:
    async def use() -> None:
        work, here = LongWork(), threading.get_ident()
        assert await work.run(threading.get_ident) != here
        assert await work.run(int, "ff", base=16) == 255
        with pytest.raises(ValueError, match="invalid literal"):
            await work.run(int, "x")

    asyncio.run(use())


def resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20


def grown() -> float:
    """Make and free many blocks of the C heap, with one at its end that stays."""
    before = resident_mb()
    blocks = [bytes(2000) for _ in range(40_000)]
    held.append(blocks[-1])
    return resident_mb() - before


held: list[bytes] = []


def test_freed_memory_returns_to_the_system() -> None:
    async def use() -> None:
        work = LongWork()
        before = resident_mb()
        assert await work.run(grown) > 60
        async with asyncio.timeout(30):
            while resident_mb() > before + 20:
                await asyncio.sleep(0.01)

    asyncio.run(use())
