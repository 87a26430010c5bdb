"""Serves a model over HTTP: the core in a process of its own, one front end in this process or
several in others."""

import asyncio
import logging
import os
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from signal import SIGTERM, signal
from threading import current_thread, main_thread
from time import monotonic
from types import NoneType
from typing import Any

from fastapi import FastAPI

from paceline.core.settings.load import LoadConfig
from paceline.core.system.host import keep_heap, usable_cores
from paceline.core.system.start import FACTORY
from paceline.engine.components import factory_named
from paceline.engine.frontend.metrics import Metrics
from paceline.engine.loop.ports import Core, PromptImages
from paceline.engine.replicas.several_cores import SeveralCores
from paceline.engine.sampling_rules import SamplingRules
from paceline.engine.settings import CoreSettings, EngineSettings
from paceline.engine.streaming import StreamingEngine
from paceline.engine.trace.frontend_trace import front_end
from paceline.engine.trace.trace_file import TraceTarget
from paceline.engine.transport.child_process import ANYWHERE, ProcessPlace, discard_begun
from paceline.engine.transport.process import ProcessCore
from paceline.engine.transport.restart import RestartingCore
from paceline.engine.transport.shared_core import ForwardingCore
from paceline.engine.transport.thread import ThreadCore
from paceline.hub.catalogue import DEFAULT
from paceline.hub.repository_files import Progress, silent
from paceline.server import serve as http
from paceline.server.app import create_app
from paceline.server.context import ServerContext
from paceline.server.listen import (
    RunningServer,
    announced,
    bound_sockets,
    check_port,
    check_socket,
    url_of,
)
from paceline.server.scoreboard import shared_memory
from paceline.server.settings import ServerSettings
from paceline.text.chat_template import ChatTemplate
from paceline.text.tokenizer import Tokenizer
from paceline.wiring.model_files import (
    download,
    load_images,
    load_tokenizer,
    log_rules,
    log_template,
    sampling_rules,
)
from paceline.wiring.processes.engine_replicas import places, settings_of
from paceline.wiring.processes.supervisor import FrontEndSettings, IdleProcesses, Supervisor
from paceline.wiring.recording import begin_files
from paceline.wiring.settings import ENGINE_SETTINGS, LOAD_SETTINGS, part_of, pop_settings
from paceline.wiring.vllm.settings import translated
from paceline.wiring.vllm.values import as_json

SERVER_ARGUMENTS = {
    *ENGINE_SETTINGS,
    *(one.name for kind in (ServerSettings, CoreSettings, EngineSettings) for one in fields(kind)),
}
PLAIN = (str, int, float, bool, NoneType)

log = logging.getLogger(__name__)

CORES_PER_FRONT_END, MOST_FRONT_ENDS = 4, 8  # by default
LOOPBACK = ("127.0.0.1", "::1", "localhost")


def serve(
    model: str = DEFAULT,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    uds: str = "",
    progress: Progress = silent,
    **settings: Any,
) -> None:
    """Serve a model over HTTP until SIGINT or SIGTERM, at a port or at the Unix socket `uds`.

    Settings by name: those of `ServerSettings`, `CoreSettings`, `EngineSettings`, and of the
    engine itself. Raises EngineFailed if the engine has died and is not restarted.
    """
    http.log_to_stderr(as_json=settings.get("log_format") == "json")
    model, settings = translated(model, settings, SERVER_ARGUMENTS)
    settings = with_page(as_json(settings), host, uds)
    chosen: ServerSettings = pop_settings(ServerSettings, settings)
    if uds:
        check_socket(uds)
    else:
        check_port(host, port)
    log_keys(chosen, LOOPBACK[0] if uds else host)
    begin_files(settings)
    chosen = replace(chosen, api_server_count=front_ends(chosen, part_of(CoreSettings, settings)))
    if chosen.api_server_count > 1:
        serve_by_several(model, (host, port, uds), chosen, progress, settings)
        return
    with exit_on_sigterm():  # until the server handles signals
        found = loaded(model, progress, settings)
    log_rules(found.rules)

    async def main() -> None:
        engine = found.engine()
        try:
            app = found.application(engine, model, chosen)
            keep_heap()
            await http.serve(app, host, port, uds)
        finally:
            await engine.shutdown()

    asyncio.run(main())


def with_page(settings: Mapping[str, Any], host: str, uds: str) -> dict[str, Any]:
    """By default the live page is served where only this machine can reach it."""
    return {"dashboard": bool(uds) or host in LOOPBACK, **settings}


def front_ends(chosen: ServerSettings, core: CoreSettings) -> int:
    """The number of front ends: as set, or by the cores."""
    if chosen.api_server_count or core.core == "thread":
        return chosen.api_server_count or 1
    return max(1, min(MOST_FRONT_ENDS, usable_cores() // CORES_PER_FRONT_END))


def serve_by_several(
    model: str,
    address: tuple[str, int, str],
    chosen: ServerSettings,
    progress: Progress,
    settings: dict[str, Any],
) -> None:
    """Serve with front ends in processes of their own; this process owns the core."""
    load, limits = part_of(LoadConfig, settings), part_of(CoreSettings, settings)
    with ExitStack() as closing:
        with exit_on_sigterm():
            sockets = [closing.enter_context(one) for one in bound_sockets(*address)]
            if uds := address[2]:
                closing.callback(Path(uds).unlink, missing_ok=True)
            board = shared_memory(chosen.api_server_count + 1, limits.data_parallel_size)
            closing.callback(os.close, board)
            files = tuple(one.fileno() for one in sockets)
            idle = IdleProcesses((*files, board), chosen.api_server_count)
            closing.callback(idle.close)
            labels, given = cache_labels(settings), plain(settings)
            core, path = loaded_core(model, progress, settings)
            closing.callback(core.close)
            shared = FrontEndSettings(model, path, load, chosen, labels, given, files, board)
            supervisor = Supervisor(core, shared, limits, idle)
            closing.callback(supervisor.close)
            supervisor.start()
        url = url_of(sockets[0])
        name = chosen.aliases[0] if chosen.aliases else model
        with announced(RunningServer.here(name, model, url)):
            log.info("%d front ends listen at %s (Ctrl-C to quit)", chosen.api_server_count, url)
            supervisor.run()


def cache_labels(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of the KV cache as labels of a metric, under vLLM's names."""
    given = {name: settings[name] for name in LOAD_SETTINGS if name in settings}
    load = LoadConfig(**given)
    return {
        "cache_dtype": load.kv_cache_dtype,
        "gpu_memory_utilization": load.gpu_memory_utilization,
        "num_gpu_blocks_override": load.num_gpu_blocks_override or None,
        "swap_space": load.swap_space,
    }


def plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as values that can be sent and shown."""
    return {name: one if type(one) in PLAIN else str(one) for name, one in settings.items()}


def log_keys(settings: ServerSettings, host: str) -> None:
    """Log whether clients need an API key."""
    if settings.keys:
        log.info("clients need an API key; keys set: %d", len(settings.keys))
    elif host in LOOPBACK:
        log.info("no API key is set: every client on this machine is accepted")
    else:
        log.warning(
            "no API key is set: every client that reaches %s is accepted; --api-key or "
            "PACELINE_API_KEY sets one",
            host,
        )


def exit_at_once(_signal: int, _frame: object) -> None:
    sys.exit(0)


@contextmanager
def exit_on_sigterm() -> Generator[None]:
    """No request is open yet, so exit at once. Only the main thread receives signals."""
    if current_thread() is not main_thread():
        yield
        return
    before = signal(SIGTERM, exit_at_once)
    try:
        yield
    finally:
        signal(SIGTERM, before)


@dataclass(frozen=True, slots=True, eq=False)
class ServedModel:
    """A core that is ready, and what turns prompts into tokens."""

    core: Core
    tokenizer: Tokenizer
    images: PromptImages | None
    rules: SamplingRules
    labels: dict[str, Any]  # of the metric cache_config_info
    given: dict[str, Any]  # settings

    def engine(self) -> StreamingEngine:
        """An engine for the event loop that runs; the caller shuts it down."""
        metrics = [Metrics() for _ in range(self.core.ready().engines)]
        template = ChatTemplate.of(self.tokenizer)
        make = front_end(TraceTarget(self.given.get("trace", ""), "front end"))
        frontend = make(self.tokenizer, template, monotonic, self.rules, metrics)
        frontend.images = self.images
        return StreamingEngine(self.core, frontend)

    def application(self, engine: StreamingEngine, model: str, chosen: ServerSettings) -> FastAPI:
        """The routes over the engine."""
        app = create_app(engine, model, self.tokenizer, chosen)
        context: ServerContext = app.state.context
        context.cache_labels, context.given_settings = self.labels, self.given
        return app


def loaded(model: str, progress: Progress, settings: dict[str, Any]) -> ServedModel:
    """Load a model."""
    labels, given = cache_labels(settings), plain(settings)
    load = part_of(LoadConfig, settings)
    core, path = loaded_core(model, progress, settings)
    try:
        tokenizer = load_tokenizer(path, load.load_format, load.chat_template)
        images = load_images(path, tokenizer, load)
        rules = sampling_rules(tokenizer, load)
    except BaseException:
        core.close()
        raise
    log_template(tokenizer)
    return ServedModel(core, tokenizer, images, rules, labels, given)


def loaded_core(
    model: str, progress: Progress, settings: dict[str, Any]
) -> tuple[ForwardingCore, str]:
    """A core that is ready, and the path of the model."""
    is_dummy = settings.get("load_format", "auto") == "dummy"
    path = model if is_dummy else str(download(model, progress))
    log.info("loading %s: starting the engine", model)
    core = core_of(path, settings)
    try:
        capacity = core.ready()
    except BaseException:
        core.close()
        raise
    log.info("%s is loaded; max_model_len is %d", model, capacity.max_model_len)
    return core, path


def core_of(path: str, settings: dict[str, Any]) -> ForwardingCore:
    """The step loop of a model, on a thread, in a process, or in several that load it at once."""
    chosen: CoreSettings = pop_settings(CoreSettings, settings)
    engine: EngineSettings = pop_settings(EngineSettings, settings)
    if chosen.core == "thread":
        discard_begun()
        components = factory_named(FACTORY)(path, **settings)
        return ThreadCore(replace(components, settings=engine).engine())
    with ExitStack() as closing:
        cores: list[RestartingCore] = []
        for replica_settings, place in engines_of(settings, chosen.data_parallel_size):
            make = partial(ProcessCore, FACTORY, path, replica_settings, engine, place)
            cores.append(RestartingCore(make, chosen))
            closing.callback(cores[-1].close)
        exits = chosen.on_core_crash == "exit"
        core = SeveralCores(cores, exits, chosen.core_restart_wait_s)
        closing.pop_all()
    return core


def engines_of(
    settings: dict[str, Any], engines: int
) -> Sequence[tuple[dict[str, Any], ProcessPlace]]:
    """The settings of each engine, and where its process runs: one alone has the whole machine."""
    if engines == 1:
        return [(settings, ANYWHERE)]
    gpus_each = settings.get("tensor_parallel_size", 1)
    found = places(engines, settings.get("device", "auto"), gpus_each)
    return [(settings_of(settings, number), place) for number, place in enumerate(found)]
