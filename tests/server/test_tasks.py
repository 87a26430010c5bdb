"""The turnstile: a few tasks in each turn of the loop, in order, and no task is forgotten."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from paceline.server.tasks import PacedRequests, Turnstile


def run(use: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(use(), 30))


def test_so_many_tasks_pass_in_each_turn_in_their_order() -> None:
    async def use() -> None:
        turnstile, turn, passed = Turnstile(3), 0, list[tuple[int, int]]()

        async def go(place: int) -> None:
            await turnstile.enter()
            passed.append((turn, place))

        tasks = [asyncio.create_task(go(place)) for place in range(20)]
        while len(passed) < 20:
            await asyncio.sleep(0)
            turn += 1
        assert [place for _, place in passed] == list(range(20))
        counts = [sum(when == one for when, _ in passed) for one in range(turn)]
        assert counts == [3, 0, 3, 3, 3, 3, 3, 2]  # in the second turn, the line begins to move
        await asyncio.gather(*tasks)

    run(use)


def test_a_single_task_does_not_wait() -> None:
    async def use() -> None:
        turnstile = Turnstile(1)
        for _ in range(3):
            entering = turnstile.enter()
            try:
                entering.send(None)
            except StopIteration:
                pass
            else:
                raise AssertionError("it waits")
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        assert not turnstile._turns  # an idle loop is left alone

    run(use)


def test_a_cancelled_task_takes_no_place() -> None:
    async def use() -> None:
        turnstile, passed = Turnstile(1), list[int]()

        async def go(place: int) -> None:
            await turnstile.enter()
            passed.append(place)

        tasks = [asyncio.create_task(go(place)) for place in range(5)]
        await asyncio.sleep(0)
        for place in (1, 2, 4):
            tasks[place].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert passed == [0, 3]
        await turnstile.enter()

    run(use)


def test_only_requests_with_a_body_are_paced() -> None:
    async def use() -> None:
        turnstile, served = Turnstile(1), list[str]()

        async def app(scope: Any, _receive: Any, _send: Any) -> None:
            served.append(scope.get("path", "lifespan"))

        paced: Any = PacedRequests(app, turnstile)
        kinds = [
            {"type": "http", "method": "POST", "path": "/a"},
            {"type": "http", "method": "POST", "path": "/b"},
            {"type": "http", "method": "GET", "path": "/health"},
            {"type": "lifespan"},
        ]
        await asyncio.gather(*(paced(kind, None, None) for kind in kinds))
        assert served == ["/a", "/health", "lifespan", "/b"]

    run(use)
