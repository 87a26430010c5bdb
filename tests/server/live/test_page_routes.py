"""The live page of a server: files, frames, lives, keys, and pages that read slowly."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from fastapi import Request as HttpRequest

from paceline.core.request import Request
from paceline.engine.api import EngineFailed
from paceline.engine.live.feed import LiveControl
from paceline.engine.live.frames import (
    LATEST,
    Frame,
    FrameAnswer,
    FrameQuestion,
    RequestLife,
    Seat,
    StreamStart,
    StreamStatus,
)
from paceline.server.live.page_routes import MOST_BEHIND, PageFiles, PageStream, frame_events
from paceline.server.replies.response_writer import SentBody
from paceline.server.settings import ServerSettings
from tests.engine.live.shown import ShownEngine
from tests.server.conftest import Play
from tests.server.support import Site, on_its_own_server, paced

LONG: dict[str, Any] = {"prompt": "hello there", "max_tokens": 60, "ignore_eos": True}
KINDS = {"start": StreamStart, "frame": Frame, "status": StreamStatus}


@asynccontextmanager
async def page(site: Site, query: str = "") -> AsyncGenerator[AsyncIterator[Any]]:
    """The events of a page, decoded as the contract has them."""

    async def events(lines: AsyncIterator[str]) -> AsyncIterator[Any]:
        async for line in lines:
            if line.startswith("event: "):
                data = (await anext(lines)).removeprefix("data: ")
                yield msgspec.json.decode(data, type=KINDS[line.removeprefix("event: ")])

    async with site.http.stream("GET", f"/dashboard/events{query}") as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        yield events(response.aiter_lines())


def test_a_page_sees_a_request_from_its_first_step_to_its_end() -> None:
    async def scenario(site: Site) -> None:
        async with page(site) as events:
            start = await anext(events)
            assert (start.engines, start.model, start.recording) == (1, "oracle", "")
            answer = await site.post("/v1/completions", **LONG)
            name = answer.json()["id"]
            seen, frames = set[str](), list[Frame]()
            while not frames or not frames[-1].totals.finished:
                frames.append(await anext(events))
                seen |= {seat.request_id for seat in frames[-1].seats}
            assert seen == {name}
            assert frames[-1].totals.tokens == 60
            assert [frame.number for frame in frames] == list(range(1, len(frames) + 1))
        async with page(site, "?engine=0") as events:
            await anext(events)
            again = [await anext(events) for _ in frames]
            assert again == frames, "a page that comes later gets what was kept"
        found = await site.http.get(f"/dashboard/requests/{name}")
        life = msgspec.json.decode(found.content, type=RequestLife)
        assert (life.state, life.text, life.prompt) == ("FINISHED_LENGTH", None, life.known - 60)
        for path in ("requests/nobody", "events?engine=1", "..%2fsettings.py", "none.js"):
            found = await site.http.get(f"/dashboard/{path}")
            assert (found.status_code, found.json()["error"]["code"]) == (404, "not_found")
        async with page(site) as events:
            await anext(events)
            site.server.begin_drain(1)
            rest = [one async for one in events]  # an open page does not keep a server from ending
            assert all(isinstance(one, Frame) for one in rest)

    on_its_own_server(scenario, ServerSettings(dashboard=True), breaks=paced)


def test_frames_and_lives_need_the_key_and_files_do_not() -> None:
    async def scenario(site: Site) -> None:
        for path in ("/events", "/requests/a", "/unknown.js"):
            assert (await site.http.get(f"/dashboard{path}")).status_code == 401
        moved = await site.http.get("/dashboard")
        assert (moved.status_code, moved.headers["location"]) == (303, "dashboard/")
        site.http.headers["Authorization"] = "Bearer secret"
        async with page(site) as events:
            assert isinstance(await anext(events), StreamStart)
        name = (await site.post("/v1/completions", **LONG)).json()["id"]
        found = await site.http.get(f"/dashboard/requests/{name}")
        assert found.json()["text"] == LONG["prompt"], "a setting lets the page show prompts"

    settings = ServerSettings(dashboard=True, dashboard_show_prompts=True, api_keys=("secret",))
    on_its_own_server(scenario, settings)


def test_without_the_setting_there_is_no_page(on: Play) -> None:
    async def scenario(site: Site) -> None:
        for path in ("", "/", "/events"):
            assert (await site.http.get(f"/dashboard{path}")).status_code == 404

    on(scenario)


# -- the files --------------------------------------------------------------


def test_files_have_their_types_and_are_not_sent_twice(tmp_path: Any) -> None:
    (tmp_path / "vendor").mkdir()
    (tmp_path / "vendor" / "plot.js").write_text("1")
    (tmp_path / "index.html").write_text("<p>")
    files = PageFiles(tmp_path)
    assert files.names == ["index.html", "vendor/plot.js"]

    def asked(name: str, **headers: str) -> Any:
        pairs = [(key.encode(), value.encode()) for key, value in headers.items()]
        return files.response(name, HttpRequest({"type": "http", "headers": pairs}))

    script = asked("vendor/plot.js")
    assert (script.body, script.headers["content-type"]) == (b"1", "text/javascript; charset=utf-8")
    assert "default-src 'self'" in script.headers["content-security-policy"]
    assert asked("../index.html") is None
    etag = script.headers["etag"]
    for had in (etag, "*", f'"other", {etag}', f'W/{etag},"other"'):
        again = asked("vendor/plot.js", **{"if-none-match": had})
        assert (again.status_code, again.body, again.headers["etag"]) == (304, b"", etag)
    for had in ("", '"other"', etag.strip('"'), f'"x{etag[1:]}'):
        assert asked("vendor/plot.js", **{"if-none-match": had}).status_code == 200


# -- pages that read slowly, engines that come back --------------------------


class ScriptedSource:
    """Answers as they come; one that is an error is raised. Then it ends the stream."""

    engines, goes_on = 1, True

    def __init__(self, *answers: FrameAnswer | EngineFailed) -> None:
        self.answers, self.questions = list(answers), list[FrameQuestion]()

    def start(self) -> StreamStart:
        return StreamStart("0", "m", 1, 0.5, 10, None)

    async def frames(self, question: FrameQuestion) -> FrameAnswer:
        self.questions.append(question)
        answer = self.answers.pop(0)
        if isinstance(answer, EngineFailed):
            raise answer
        return answer

    async def life(self, request_id: str) -> Any:
        raise NotImplementedError

    def sent(self) -> list[tuple[str, Any]]:
        """The events that a page gets."""
        body = bytearray()

        async def send(message: Any) -> None:
            body.extend(message["body"])

        stream = PageStream(self, lambda: not self.answers, send, SentBody(send))
        asyncio.run(stream.run([0]))
        parts = [part.split("\n") for part in body.decode().split("\n\n") if part]
        parts = [part for part in parts if not part[0].startswith(":")]
        return [(name[7:], json.loads(data[6:])) for name, data in parts]


def answer_of(run: int, *numbers: int, more: bool = False) -> FrameAnswer:
    return FrameAnswer(run, numbers[-1], tuple(b"%d" % number for number in numbers), more=more)


def test_the_status_of_an_engine_that_dies_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.server.live.page_routes.RETRY_S", 0.0)
    gone = EngineFailed("it died")
    monkeypatch.setattr("paceline.server.live.page_routes.SILENCE_S", -1.0)
    source = ScriptedSource(answer_of(1, 1, 2), gone, gone, answer_of(2, 1), answer_of(2, 2))
    assert source.sent()[1:] == [
        ("frame", 1),
        ("frame", 2),
        ("status", {"engine": 0, "trouble": "it died", "restarts": 0}),
        ("status", {"engine": 0, "trouble": "", "restarts": 1}),
        ("frame", 1),
        ("frame", 2),
    ]
    assert source.questions[3:] == [FrameQuestion(0, 1, 2), FrameQuestion(0, 2, 1)]


def test_a_page_that_does_not_read_is_sent_no_more(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its frames do not pile up in the memory of the server, and the server ends without it."""
    asked = list[FrameQuestion]()

    async def large(_: LiveControl, question: FrameQuestion) -> FrameAnswer:
        asked.append(question)
        await asyncio.sleep(0)
        return FrameAnswer(1, question.number + 1, (b'"%b"' % (b"x" * 2**18),))

    async def scenario(site: Site) -> None:
        async with site.http.stream("GET", "/dashboard/events"):
            before = -1
            while len(asked) > before:
                before = len(asked)
                await asyncio.sleep(0.2)
            site.server.begin_drain(1)
            await site.until(lambda: not site.server.server_state.connections)

    monkeypatch.setattr(LiveControl, "frames", large)
    monkeypatch.setattr("paceline.server.live.page_routes.LAST_S", 0.1)
    on_its_own_server(scenario, ServerSettings(dashboard=True))
    assert 0 < len(asked) < 100
    assert not [one.message for one in caplog.records if one.levelname == "ERROR"]


def test_a_page_that_is_behind_loses_frames() -> None:
    history = answer_of(1, *range(1, 21))
    many = answer_of(1, *range(21, 22 + MOST_BEHIND))
    source = ScriptedSource(history, many, answer_of(1, 40))
    assert [number for _, number in source.sent()[1:]] == [*range(1, 21), 40]
    assert source.questions[-1] == FrameQuestion(0, 1, LATEST)


def test_the_first_frame_tells_who_has_which_slot() -> None:
    shown = ShownEngine()
    shown.engine.submit(Request("a", [1, 2], max_tokens=9))
    shown.ask()
    shown.turn()
    shown.clock.advance_to(1.0)
    shown.ask()
    answer = shown.answer(FrameQuestion(0, 0, LATEST))
    before = Seat(5, 1, "b", -1, 7)
    events = frame_events(msgspec.structs.replace(answer, base=(before,)))
    frame = msgspec.json.decode(events.decode().split("data: ")[1], type=Frame)
    assert [(seat.slot, seat.request_id) for seat in frame.seats] == [(5, "b"), (0, "a")]
