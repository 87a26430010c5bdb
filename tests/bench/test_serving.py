"""A load on a real server: each call at its time, so many at once, warm-ups apart."""

import asyncio

import httpx

from paceline.bench.client import Load, counter, prefix_cache_use, run
from paceline.bench.samples import PrefixCacheUse
from tests.bench.support import TARGET, call
from tests.server.support import Site, on_its_own_server, paced


def test_samples_come_in_the_order_of_the_calls() -> None:
    async def scenario(site: Site) -> None:
        calls = [call(number, 8 + number, 9 - number, 0.05 * number) for number in range(4)]
        heard: list[tuple[int, int]] = []
        done = await run(site.http, TARGET, Load(calls), lambda *counts: heard.append(counts))
        samples = done.samples
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
        samples = (await run(site.http, TARGET, Load(calls, max_concurrency=2))).samples
        watching.cancel()
        assert all(not sample.error for sample in samples)
        assert most == 2

    on_its_own_server(scenario, breaks=paced)


def test_warm_ups_are_not_counted_and_leave_no_prefix_behind() -> None:
    async def scenario(site: Site) -> None:
        calls = [call(number, tokens=40) for number in range(3)]
        done = await run(site.http, TARGET, Load(calls, warmup=2))
        assert len(done.samples) == 3
        assert done.cache == PrefixCacheUse(3 * 40, 0), "without the warm-ups"
        assert site.scheduler.stats.prefix_queries == 5 * 40
        assert site.scheduler.stats.prefix_hits == 0
        again = await run(site.http, TARGET, Load(calls))
        assert again.cache is not None
        assert again.cache.queries == 3 * 40
        assert again.cache.hit_rate > 0.8, "the same prompts once more"

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
        samples = (await running).samples
        assert [sample.error for sample in samples] == ["", ""]

    on_its_own_server(scenario)


def test_counters_are_sums_over_the_engines_of_a_server() -> None:
    text = (
        "# TYPE x_total counter\n"
        'x_total{engine="0",model_name="a } b"} 3.0\n'
        'x_total{engine="1"} 4e1 1700000000\n'
        "x_total_more 9.0\nplain 5\nodd five\n"
    )
    assert counter(text, "x_total") == 43
    assert counter(text, "plain") == 5
    assert counter(text, "absent") is counter(text, "odd") is None


def test_a_server_without_such_counters_says_nothing_of_its_cache() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.host == "lost":
            raise httpx.ConnectError("no way")
        return httpx.Response(404 if request.url.host == "absent" else 200, text="up 1\n")

    async def asked(host: str) -> PrefixCacheUse | None:
        transport = httpx.MockTransport(answer)
        async with httpx.AsyncClient(base_url=f"http://{host}", transport=transport) as http:
            return await prefix_cache_use(http)

    assert [asyncio.run(asked(host)) for host in ("lost", "absent", "other")] == [None] * 3
