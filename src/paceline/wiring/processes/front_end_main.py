"""One of several front ends: `python -m paceline.wiring.processes.front_end_main ADDRESS`."""

import asyncio
import logging
import signal
import socket
import sys
from asyncio import AbstractEventLoop
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from threading import Thread
from time import monotonic
from typing import Any

import msgspec

from paceline.core.arrays import F64
from paceline.core.errors import PacelineError
from paceline.core.system.host import keep_heap
from paceline.engine.api import Report
from paceline.engine.frontend.frontend import Frontend
from paceline.engine.frontend.metrics import Metrics
from paceline.engine.loop.ports import Core
from paceline.engine.streaming import StreamingEngine
from paceline.engine.trace.frontend_trace import front_end
from paceline.engine.trace.trace_file import TraceTarget
from paceline.engine.transport.front_end_link import PeerVerb
from paceline.engine.transport.process_main import die_with_parent
from paceline.engine.transport.remote_core import RemoteCore
from paceline.engine.transport.wire import read_only
from paceline.server.app import create_app
from paceline.server.context import ServerContext
from paceline.server.listen import unusable
from paceline.server.routes.operations import answer_peer
from paceline.server.scoreboard import shared_board
from paceline.server.serve import DrainingServer, draining_server, log_to_stderr
from paceline.text.chat_template import ChatTemplate
from paceline.wiring.model_files import (
    load_images,
    load_tokenizer,
    log_rules,
    log_template,
    sampling_rules,
)
from paceline.wiring.processes.supervisor import FrontEndSettings

ANSWER_S = 5.0  # for the other front ends to answer


class SharedEngine(StreamingEngine):
    """Its figures and limits are those of all engines together.

    `metrics` has the cells of each front end and each engine: [front ends, engines, cells].
    `figures` are two of the core: its requests of all front ends, and how often it died.
    """

    def __init__(self, core: Core, frontend: Frontend, metrics: F64, figures: F64) -> None:
        super().__init__(core, frontend)
        self._metrics, self._core_figures = metrics, figures

    def _open_in_core(self) -> int:
        return max(int(self._core_figures[0]), super()._open_in_core())

    async def stats(self, engine: int = 0) -> Report:
        figures = await self._figures.of(engine)
        report = Metrics(self._metrics[:, engine].sum(axis=0)).report(figures)
        return (
            report if "crashes" in figures else replace(report, crashes=int(self._core_figures[1]))
        )


def main(address: str) -> None:
    """Serve until the owner of the core, or a signal, ends this process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to the owner as well
    Thread(target=die_with_parent, daemon=True).start()
    core = RemoteCore(address)
    settings = msgspec.convert(core.build.settings, FrontEndSettings, dec_hook=read_only)
    log_to_stderr(as_json=settings.server.log_format == "json")
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)  # the owner says the rest once
    status = 0
    try:
        asyncio.run(serve(core, settings))
    except PacelineError as error:
        core.report_ready(error)
        status = 1
    core.close()
    sys.exit(status)


async def serve(core: RemoteCore, settings: FrontEndSettings) -> None:
    tokenizer = load_tokenizer(
        settings.path, settings.load.load_format, settings.load.chat_template
    )
    rules = sampling_rules(tokenizer, settings.load)
    if settings.row == 0:
        log_rules(rules)
        log_template(tokenizer)
    board = shared_board(settings.board, settings.row, core.ready().engines)
    make = front_end(TraceTarget(settings.given.get("trace", ""), f"front end {settings.row}"))
    frontend = make(
        tokenizer,
        ChatTemplate.of(tokenizer),
        monotonic,
        rules,
        board.own_metrics,
        core.build.number,
    )
    frontend.images = load_images(settings.path, tokenizer, settings.load)
    engine = SharedEngine(core, frontend, board.metrics, board.section("core")[-1])
    app = create_app(engine, settings.model, tokenizer, settings.server, board)
    context: ServerContext = app.state.context
    context.cache_labels, context.given_settings = settings.cache_labels, settings.given
    context.peers = RemotePeers(core)
    server = draining_server(app, "", 0)
    server.listening = lambda _: core.report_ready()
    core.control = LoopControl(server, context, asyncio.get_running_loop())
    await context.read_adapters()
    keep_heap()
    sockets = listeners(settings.sockets)
    reading = asyncio.create_task(server.end_with_engine())
    try:
        await server.serve(sockets)
    finally:
        reading.cancel()
        await engine.shutdown()


def listeners(files: Sequence[int]) -> list[socket.socket]:
    """Listen at bound sockets. Another server may have begun to while the model was loaded."""
    sockets = [socket.socket(fileno=file) for file in files]
    for one in sockets:
        try:
            one.listen()
        except OSError as error:
            host, port, *_ = one.getsockname()
            raise unusable(host, port, error) from None
    return sockets


class LoopControl:
    """Passes what the owner of the core asks to the event loop."""

    def __init__(
        self, server: DrainingServer, context: ServerContext, loop: AbstractEventLoop
    ) -> None:
        self._server, self._context, self._loop = server, context, loop

    def drain(self, hurry: bool) -> None:
        with suppress(RuntimeError):  # the event loop is closed
            self._loop.call_soon_threadsafe(self._server.begin_drain, 2 if hurry else 1)

    def answer(self, verb: PeerVerb, names: tuple[str, ...]) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(answer_peer(self._context, verb, names), self._loop)


class RemotePeers:
    """Front ends in other processes. If one is stuck, there are no answers."""

    def __init__(self, core: RemoteCore) -> None:
        self._core = core

    async def ask(self, verb: PeerVerb, names: tuple[str, ...]) -> list[Any]:
        with suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_S):
                answers = await asyncio.wrap_future(self._core.ask_peers(verb, names))
                return [one for one in answers if one is not None]
        return []


if __name__ == "__main__":
    main(sys.argv[1])
