"""Files and batches over HTTP, as OpenAI's client uses them."""

import asyncio
import errno
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import APIStatusError, BadRequestError, NotFoundError, RateLimitError

from paceline.server.batches import batch_store
from paceline.server.batches.batch_file import BatchRun, BatchStopped, Results, entries, is_aborted
from paceline.server.batches.counts import Counts
from paceline.server.settings import ServerSettings
from tests.server.support import Site, on_its_own_server, paced, served

COMPLETIONS = "/v1/completions"


def line(name: str, url: str = COMPLETIONS, **body: Any) -> str:
    body = {"prompt": "the fox", "max_tokens": 4, "ignore_eos": True} | body
    return json.dumps({"custom_id": name, "method": "POST", "url": url, "body": body})


def settings(folder: Path, **fields: Any) -> ServerSettings:
    return ServerSettings(files_dir=str(folder), **fields)


async def uploaded(site: Site, *lines: str) -> str:
    content = "\n".join(lines).encode() + b"\n"
    made = await site.openai.files.create(file=("in.jsonl", content), purpose="batch")
    assert (made.bytes, made.filename, made.purpose) == (len(content), "in.jsonl", "batch")
    return made.id


async def started(site: Site, *lines: str, url: Any = COMPLETIONS) -> str:
    batch = await site.openai.batches.create(
        input_file_id=await uploaded(site, *lines),
        endpoint=url,
        completion_window="24h",
        metadata={"team": "a"},
    )
    assert (batch.status, batch.metadata) == ("validating", {"team": "a"})
    return batch.id


async def ended(site: Site, batch_id: str) -> Any:
    async with asyncio.timeout(60):
        while True:
            batch = await site.openai.batches.retrieve(batch_id)
            if batch.status not in ("validating", "in_progress", "finalizing", "cancelling"):
                return batch
            await asyncio.sleep(0.01)


async def lines_of(site: Site, file_id: str | None) -> dict[str, Any]:
    assert file_id is not None
    text = (await site.openai.files.content(file_id)).text
    return {one["custom_id"]: one for one in map(json.loads, text.splitlines())}


def test_a_batch_is_answered(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        prompts = [line(f"r{number}", max_tokens=1 + number) for number in range(5)]
        batch = await ended(site, await started(site, *prompts, line("bad", model="nobody")))
        assert batch.status == "completed"
        assert batch.request_counts.model_dump() == {"completed": 5, "failed": 1, "total": 6}
        fine = await lines_of(site, batch.output_file_id)
        for number in range(5):
            body = fine[f"r{number}"]["response"]["body"]
            assert body["usage"]["completion_tokens"] == 1 + number
        (bad,) = (await lines_of(site, batch.error_file_id)).values()
        assert (bad["custom_id"], bad["response"]["status_code"]) == ("bad", 404)
        assert [one.id async for one in site.openai.batches.list()] == [batch.id]
        assert not list(tmp_path.glob("batches/*.[rlc]*"))  # results, lock, cancel

    on_its_own_server(scenario, settings(tmp_path, api_keys=("none",)))


def test_embeddings_are_answered_too(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        url = "/v1/embeddings"
        asked = {"custom_id": "e", "method": "POST", "url": url, "body": {"input": "the fox"}}
        batch = await ended(site, await started(site, json.dumps(asked), url=url))
        # The oracle makes no embeddings and says so; the line reached the route.
        (found,) = (await lines_of(site, batch.output_file_id or batch.error_file_id)).values()
        assert found["response"]["body"]

    on_its_own_server(scenario, settings(tmp_path))


def test_lines_that_are_no_requests_fail_the_batch(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        chat = line("c", url="/v1/chat/completions")
        batch = await ended(site, await started(site, line("a"), "nonsense", chat, line("a")))
        assert batch.status == "failed"
        assert batch.errors is not None
        assert [(one.line, one.code) for one in batch.errors.data or ()] == [
            (2, "invalid_line"),
            (3, "invalid_line"),
            (4, "invalid_line"),
        ]
        assert (await ended(site, await started(site))).status == "failed"

    on_its_own_server(scenario, settings(tmp_path))


def test_a_batch_is_cancelled(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with served(breaks=paced, settings=settings(tmp_path, batch_concurrency=2)) as site:
            prompts = [line(f"r{number}", max_tokens=20) for number in range(40)]
            batch_id = await started(site, *prompts)
            while not (await site.openai.batches.retrieve(batch_id)).in_progress_at:
                await asyncio.sleep(0.005)
            assert (await site.openai.batches.cancel(batch_id)).status == "cancelling"
            batch = await ended(site, batch_id)
            assert batch.status == "cancelled"
            assert batch.cancelling_at
            assert batch.request_counts.completed < 40
            with pytest.raises(BadRequestError, match="has ended"):
                await site.openai.batches.cancel(batch_id)

    asyncio.run(scenario())


def test_a_batch_goes_on_in_the_next_server(tmp_path: Path) -> None:
    kept = settings(tmp_path, batch_concurrency=2, drain_s=0.0)

    async def scenario() -> None:
        async with served(breaks=paced, settings=kept) as site:
            prompts = [line(f"r{number}", max_tokens=20) for number in range(30)]
            batch_id = await started(site, *prompts)
            while not list(tmp_path.glob("batches/*.results")):
                await asyncio.sleep(0.005)
            await asyncio.sleep(0.1)
            site.server.begin_drain(1)
        state = json.loads((tmp_path / "batches" / f"{batch_id}.json").read_text())
        assert state["status"] == "in_progress"
        async with served(settings=kept) as site:
            batch = await ended(site, batch_id)
            assert batch.status == "completed"
            found = await lines_of(site, batch.output_file_id)
            assert found.keys() == {f"r{number}" for number in range(30)}

    asyncio.run(scenario())


def test_what_is_wrong_is_said(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        file_id = await uploaded(site, line("a"))
        batches, files = site.openai.batches, site.openai.files
        with pytest.raises(BadRequestError, match="endpoint is '/v1/models'"):
            await batches.create(
                input_file_id=file_id,
                endpoint="/v1/models",
                completion_window="24h",  # type: ignore[arg-type]
            )
        other: Any = "1h"
        with pytest.raises(BadRequestError, match="completion_window is '1h'; use one of 24h"):
            await batches.create(
                input_file_id=file_id, endpoint="/v1/completions", completion_window=other
            )
        for name in ("file-0", "..%2Ffiles", "file-" + "0" * 32):
            assert (await site.http.get(f"/v1/files/{name}")).status_code == 404
        with pytest.raises(NotFoundError, match="there is no batch"):
            await batches.retrieve("batch_" + "0" * 32)
        with pytest.raises(BadRequestError, match="purpose is 'fine-tune'"):
            await files.create(file=b"x", purpose="fine-tune")
        answer = await site.http.post("/v1/files", json={"purpose": "batch"})
        assert answer.status_code == 400, answer.text

    on_its_own_server(scenario, settings(tmp_path))


def test_files_are_bounded_and_removed(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        big = await site.http.post(
            "/v1/files", files={"file": ("a", b"x" * 3000)}, data={"purpose": "batch"}
        )
        assert (big.status_code, "file_bytes" in big.text) == (413, True)
        file_id = await uploaded(site, "x" * 1500)
        full = await site.http.post(
            "/v1/files", files={"file": ("a", b"x" * 1500)}, data={"purpose": "batch"}
        )
        assert (full.status_code, "files_bytes" in full.text) == (413, True)
        assert [one.id async for one in site.openai.files.list()] == [file_id]
        assert (await site.openai.files.delete(file_id)).deleted
        assert not list(tmp_path.glob("files/*"))

    on_its_own_server(scenario, settings(tmp_path, file_bytes=2000, files_bytes=2500))


def test_a_line_has_the_limits_of_a_body(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        many = line("many", prompt=[0] * 500)
        batch = await ended(site, await started(site, line("long", prompt="a" * 3000), many))
        assert batch.errors is not None
        first, second = batch.errors.data or ()
        assert "body_bytes" in (first.message or "")
        assert "body_values" in (second.message or "")

    on_its_own_server(scenario, settings(tmp_path, body_bytes=2500, body_values=400))


def test_what_cannot_be_stored_or_has_no_effect_is_refused(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        made = {"input_file_id": await uploaded(site, line("a")), "endpoint": COMPLETIONS}
        for fields in (
            {"metadata": {"a": "\ud800"}},
            {"metadata": {"a": "b" * 513}},
            {"output_expires_after": {"anchor": "created_at", "seconds": 3600}},
        ):
            body, kind = json.dumps(made | fields), {"Content-Type": "application/json"}
            answer = await site.http.post("/v1/batches", content=body, headers=kind)
            assert (answer.status_code, next(iter(fields)) in answer.text) == (400, True)
        for fields in ({"purpose": "user_data"}, {"purpose": "batch", "expires_after": "9"}):
            answer = await site.http.post("/v1/files", files={"file": b"x"}, data=fields)
            assert (answer.status_code, [*fields][-1] in answer.text) == (400, True)
        upload = (
            b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
            b'--x\r\nContent-Disposition: form-data; name="file"; filename="a\\ud800b"\r\n\r\n'
            b"{}\r\n--x--\r\n"
        )
        kind = {"Content-Type": "multipart/form-data; boundary=x; charset=unicode_escape"}
        answer = await site.http.post("/v1/files", content=upload, headers=kind)
        assert answer.status_code == 200, answer.text
        assert len([one async for one in site.openai.files.list()]) == 2
        assert [one async for one in site.openai.batches.list()] == []

    on_its_own_server(scenario, settings(tmp_path))


def test_batches_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_store, "MOST_OPEN", 2)

    async def scenario() -> None:
        async with served(breaks=paced, settings=settings(tmp_path, files_bytes=500)) as site:
            first = await started(site, line("a", max_tokens=200))
            await started(site, line("b"))
            with pytest.raises(RateLimitError, match="2 batches are open"):
                await started(site, line("c"))
            await ended(site, first)
            await site.http.post("/v1/files", files={"file": b"x"}, data={"purpose": "batch"})
            with pytest.raises(APIStatusError, match="files_bytes"):
                await started(site, line("d"))

    asyncio.run(scenario())


def test_what_is_open_is_answered_when_the_engine_takes_no_more(tmp_path: Path) -> None:
    (tmp_path / "in").write_text("\n".join(line(f"r{number}") for number in range(3)))
    slow, came = asyncio.Event(), list[bytes]()

    async def answer(request: httpx.Request) -> httpx.Response:
        came.append(await request.aread())
        if len(came) == 1:
            await slow.wait()
            return httpx.Response(200, json={})
        slow.set()
        return httpx.Response(503, json={})

    async def run() -> None:
        http = httpx.AsyncClient(transport=httpx.MockTransport(answer), base_url="http://batch")
        with Results(tmp_path / "out") as results:
            await BatchRun(http, results, 2).run(entries(tmp_path / "in"))

    with pytest.raises(BatchStopped, match="takes no requests"):
        asyncio.run(run())
    assert len(came) == 2
    (found,) = (tmp_path / "out").read_text().splitlines()
    assert json.loads(found)["custom_id"] == "r0"


def test_a_server_without_a_folder_says_how_to_have_one() -> None:
    async def scenario(site: Site) -> None:
        for path in ("/v1/files", "/v1/batches"):
            answer = await site.http.get(path)
            assert (answer.status_code, "--files-dir" in answer.text) == (400, True)

    on_its_own_server(scenario)


def test_the_beginning_of_an_answer_is_none() -> None:
    assert is_aborted({"choices": [{"finish_reason": "stop"}, {"finish_reason": "abort"}]})
    assert is_aborted({"object": "response", "status": "cancelled"})
    assert not is_aborted({"choices": [{"finish_reason": "length"}]})
    assert not is_aborted({"data": []})


def test_a_full_queue_of_others_is_waited_for(tmp_path: Path) -> None:
    """It has room again after some time, also if no request of the batch is open."""
    (tmp_path / "in").write_text("\n".join(line(f"r{number}") for number in range(3)))
    answers = iter([429, 429, 200, 429, 200, 200])

    def answer(_: httpx.Request) -> httpx.Response:
        return httpx.Response(next(answers), json={}, headers={"retry-after": "0"})

    async def run(stopped: bool) -> Counts:
        http = httpx.AsyncClient(transport=httpx.MockTransport(answer), base_url="http://batch")
        with Results(tmp_path / f"out-{stopped}") as results:
            batch = BatchRun(http, results, 1, stopped=lambda: stopped)
            return await batch.run(entries(tmp_path / "in"))

    assert asyncio.run(run(stopped=False)) == Counts(answered=3)
    answers = iter([429])
    with pytest.raises(BatchStopped, match="has ended"):
        asyncio.run(run(stopped=True))


def test_a_full_disk_ends_a_run_with_its_error(tmp_path: Path) -> None:
    (tmp_path / "in").write_text(line("a"))

    def fail(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async def run() -> None:
        http = httpx.AsyncClient(
            transport=httpx.MockTransport(lambda _: httpx.Response(200, json={})),
            base_url="http://batch",
        )
        with Results(tmp_path / "out") as results:
            results.write = fail  # type: ignore[method-assign]
            await BatchRun(http, results, 2).run(entries(tmp_path / "in"))

    with pytest.raises(OSError, match="No space left"):
        asyncio.run(run())
