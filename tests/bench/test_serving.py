"""A load on a real server: each call at its time, so many at once, warm-ups apart."""

import asyncio

from paceline.bench.serving import Load, run
from tests.bench.support import TARGET, call
from tests.server.support import Site, on_its_own_server, paced


def test_samples_come_in_the_order_of_the_calls() -> None:
    async def scenario(site: Site) -> None:
        calls = [call(number, 8 + number, 9 - number, 0.05 * number) for number in range(4)]
        heard: list[tuple[int, int]] = []
        samples = await run(site.http, TARGET, Load(calls), lambda *counts: heard.append(counts))
        assert [sample.error for sample in samples] == [""] * 4
        assert [sample.prompt_tokens for sample in samples] == [8, 9, 10, 11]
        assert [sample.output_tokens for sample in samples] == [9, 8, 7, 6]
        assert [sample.planned_s for sample in samples] == [one.at_s for one in calls]
        assert all(sample.sent_s >= sample.planned_s for sample in samples)
        assert heard == [(1, 0), (2, 0), (3, 0), (4, 0)]

    on_its_own_server(scenario, breaks=paced)


def test_so_many_at_once_and_no_more() -> None:
    async def scenario(site: Site) -> None:
        most = 0

        async def watch() -> None:
            nonlocal most
            while True:
                most = max(most, len(site.context.open_requests))
                await asyncio.sleep(0.001)

        watching = asyncio.create_task(watch())
        calls = [call(number) for number in range(8)]
        samples = await run(site.http, TARGET, Load(calls, max_concurrency=2))
        watching.cancel()
        assert all(not sample.error for sample in samples)
        assert most == 2

    on_its_own_server(scenario, breaks=paced)


def test_warm_ups_are_not_counted_and_leave_no_prefix_behind() -> None:
    async def scenario(site: Site) -> None:
        calls = [call(number, tokens=40) for number in range(3)]
        samples = await run(site.http, TARGET, Load(calls, warmup=2))
        assert len(samples) == 3
        assert site.scheduler.stats.prefix_queries == 5 * 40
        assert site.scheduler.stats.prefix_hits == 0

    on_its_own_server(scenario)


def test_a_run_that_is_cancelled_returns_what_has_finished() -> None:
    async def scenario(site: Site) -> None:
        calls = [call(0), call(1), call(2, at_s=60.0)]
        ended = asyncio.Event()
        running = asyncio.create_task(
            run(site.http, TARGET, Load(calls), lambda done, _: ended.set() if done == 2 else None)
        )
        await ended.wait()
        running.cancel()
        samples = await running
        assert [sample.error for sample in samples] == ["", ""]

    on_its_own_server(scenario)
