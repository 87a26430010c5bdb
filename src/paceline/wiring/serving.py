"""Serves a model over HTTP: the front end in this process, the core in a process of its own."""

import asyncio
import gc
import logging
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from signal import SIGTERM, signal
from threading import current_thread, main_thread
from time import monotonic
from typing import Any

from paceline.core.config import LoadConfig, LoadFormat
from paceline.engine.core.components import factory_named
from paceline.engine.core.ports import Core
from paceline.engine.core.process import ProcessCore
from paceline.engine.core.restart import RestartingCore
from paceline.engine.core.thread import ThreadCore
from paceline.engine.frontend.frontend import Frontend
from paceline.engine.settings import CoreSettings, EngineSettings
from paceline.engine.streaming import StreamingEngine
from paceline.hub.catalogue import DEFAULT
from paceline.hub.progress import Progress, silent
from paceline.server import serve as http
from paceline.server.app import create_app
from paceline.server.listen import check_port, check_socket
from paceline.server.settings import ServerSettings
from paceline.text.chat_template import MISSING, ChatTemplate
from paceline.text.tokenizer import Tokenizer
from paceline.wiring.download import download
from paceline.wiring.llm import FACTORY
from paceline.wiring.recording import check_record
from paceline.wiring.settings import LOAD_SETTINGS, part_of, pop_settings
from paceline.wiring.tokenizer import load_tokenizer, sampling_rules

log = logging.getLogger(__name__)

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
    chosen: ServerSettings = pop_settings(ServerSettings, settings)
    http.log_to_stderr(as_json=chosen.log_format == "json")
    if uds:
        check_socket(uds)
    else:
        check_port(host, port)
    log_keys(chosen, LOOPBACK[0] if uds else host)
    check_record(settings)
    with exit_on_sigterm():  # until the server handles signals
        load = part_of(LoadConfig, settings)
        core, tokenizer = loaded(model, progress, settings)
    rules = sampling_rules(tokenizer, load)
    if rules.summary:
        log.info(
            "sampling defaults of the model: %s; --generation-config none switches them off",
            rules.summary,
        )

    async def main() -> None:
        frontend = Frontend(tokenizer, ChatTemplate.of(tokenizer), monotonic, rules)
        engine = StreamingEngine(core, frontend)
        try:
            app = create_app(engine, model, tokenizer, chosen)
            app.state.context.cache_labels = cache_labels(settings)
            gc.collect()
            gc.freeze()  # what is loaded stays; to look at it again would delay requests
            await http.serve(app, host, port, uds)
        finally:
            await engine.shutdown()

    asyncio.run(main())


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


def log_keys(settings: ServerSettings, host: str) -> None:
    """Say whether clients need an API key."""
    if settings.api_keys:
        log.info("clients need an API key; keys set: %d", len(settings.api_keys))
    elif host in LOOPBACK:
        log.info("no API key is set: every client on this machine is accepted")
    else:
        log.warning(
            "no API key is set: every client that reaches %s is accepted; --api-key or "
            "PACELINE_API_KEY sets one",
            host,
        )


@contextmanager
def exit_on_sigterm() -> Generator[None]:
    """No request is open yet, so exit at once. Only the main thread receives signals."""
    if current_thread() is not main_thread():
        yield
        return
    before = signal(SIGTERM, lambda *_: sys.exit(0))
    try:
        yield
    finally:
        signal(SIGTERM, before)


def loaded(model: str, progress: Progress, settings: dict[str, Any]) -> tuple[Core, Tokenizer]:
    """Load a model: a core that is ready, and the tokenizer."""
    form: LoadFormat = settings.get("load_format", "auto")
    path = model if form == "dummy" else str(download(model, progress))
    log.info("loading %s: starting the engine", model)
    core = core_of(path, settings)
    try:
        capacity = core.ready()
        tokenizer = load_tokenizer(path, form, settings.get("chat_template", ""))
    except BaseException:
        core.close()
        raise
    log.info("%s is loaded; max_model_len is %d", model, capacity.max_model_len)
    if not tokenizer.chat_template:
        log.warning("requests with messages are refused: %s", MISSING)
    return core, tokenizer


def core_of(path: str, settings: dict[str, Any]) -> Core:
    """The step loop of a model, on a thread or in a process."""
    chosen: CoreSettings = pop_settings(CoreSettings, settings)
    engine: EngineSettings = pop_settings(EngineSettings, settings)
    if chosen.core == "thread":
        components = factory_named(FACTORY)(path, **settings)
        return ThreadCore(replace(components, settings=engine).engine())
    return RestartingCore(partial(ProcessCore, FACTORY, path, settings, engine), chosen)
