"""The one place that wires everything: from a model's name to the parts of an engine."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, fields
from difflib import get_close_matches
from os import sysconf
from pathlib import Path
from typing import Any

import torch

from paceline.core.config import Config, LoadConfig
from paceline.core.errors import ConfigError
from paceline.engine import async_llm, llm
from paceline.engine.parts import Parts
from paceline.engine.thread import ThreadCore
from paceline.hub.catalogue import DEFAULT
from paceline.hub.progress import Progress, silent
from paceline.hub.pull import pull
from paceline.runner.attention.backend import load as load_attention
from paceline.runner.kv_store import KVStore
from paceline.runner.layers.choose import choose
from paceline.runner.models.config import ModelConfig
from paceline.runner.models.model import Model
from paceline.runner.runner import Runner
from paceline.runner.weights.files import open_checkpoint
from paceline.sched.scheduler import Scheduler
from paceline.sched.swapping import Rates
from paceline.server import serve as http
from paceline.server.app import create_app
from paceline.server.settings import ServerSettings
from paceline.text.chat import ChatTemplate
from paceline.text.tokenizer import Tokenizer

log = logging.getLogger("paceline.build")

GIB = 1 << 30
BYTES_PER_VALUE = 4
CPU_DEFAULTS: dict[str, Any] = {"max_num_batched_tokens": 512, "max_num_seqs": 64}
OWN = [setting.name for setting in fields(LoadConfig)]
SHARE_OF_MEMORY = 0.25  # of what is free, for KV, where nobody says how much


@dataclass(frozen=True, slots=True)
class Hardware:
    """What there is to run on."""

    free_bytes: int

    @staticmethod
    def found() -> "Hardware":
        return Hardware(sysconf("SC_AVPHYS_PAGES") * sysconf("SC_PAGE_SIZE"))


def block_bytes(model: ModelConfig, block_size: int) -> int:
    """Memory of one block, keys and values of all layers."""
    return model.layers * block_size * 2 * model.kv_heads * model.head_dim * BYTES_PER_VALUE


def resolve(
    settings: dict[str, Any], own: LoadConfig, model: ModelConfig, hardware: Hardware
) -> Config:
    """All settings of the scheduler, with what the model and the machine suggest filled in."""
    chosen = CPU_DEFAULTS | {"max_model_len": model.max_position} | settings
    if not chosen.get("enable_chunked_prefill", True):
        chosen.setdefault("max_num_batched_tokens", chosen["max_model_len"])
    draft = Config.of(**chosen)
    size = draft.cache.block_size
    each = block_bytes(model, size)
    most = draft.step.max_num_seqs * -(-draft.step.max_model_len // size)
    given = own.kv_cache_gib * GIB or hardware.free_bytes * SHARE_OF_MEMORY
    blocks = own.num_gpu_blocks_override or min(int(given) // each, most)
    least = -(-draft.step.max_model_len // size)
    if blocks < least and "max_model_len" in settings:
        raise ConfigError(
            f"max_model_len {draft.step.max_model_len} needs {least} blocks of {size}, and there "
            f"is memory for {blocks}: lower it, or raise kv_cache_gib"
        )
    chosen["max_model_len"] = min(draft.step.max_model_len, blocks * size)
    return Config.of(**chosen, num_blocks=blocks, swap_space=int(own.swap_space * GIB) // each)


def sort_settings(settings: dict[str, Any]) -> tuple[dict[str, Any], LoadConfig]:
    """The scheduler's settings and ours; an unknown name is an error with the nearest one."""
    ours = {name: settings[name] for name in OWN if name in settings}
    rest = {name: value for name, value in settings.items() if name not in ours}
    known = [*Config.names(), *OWN]
    for name in rest:
        if name not in Config.names() or name == "num_blocks":
            close = get_close_matches(name, known, 1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise ConfigError(f"unknown setting {name!r}{hint}")
    return rest, LoadConfig(**ours)


def build(
    model: str = DEFAULT,
    *,
    progress: Progress = silent,
    hardware: Callable[[], Hardware] = Hardware.found,
    **settings: Any,
) -> Parts:
    """Fetch a model if need be, load it, and make everything that serves it."""
    rest, own = sort_settings(settings)
    path = Path(pull(model, progress=progress))
    checkpoint = open_checkpoint(path)
    config = resolve(rest, own, checkpoint.config, hardware())
    if own.threads:
        torch.set_num_threads(own.threads)
    chosen = choose(own.weights, checkpoint.config)
    log.info("weights: %s", chosen)
    loaded = Model.load(checkpoint, linear_kind=chosen.kind)
    kv = KVStore(checkpoint.config, config.cache.num_blocks, config.cache.block_size)
    attention = load_attention(own.attention)
    step = config.step
    runner = Runner(loaded, kv, attention, step.max_num_seqs, step.max_model_len)
    scheduler = Scheduler(config)
    if config.preemption.swap_space:
        runner.reserve_host(config.preemption.swap_space)
        scheduler.measure(Rates(*runner.measure()))
    tokenizer = Tokenizer.load(path)
    template = ChatTemplate.of(tokenizer)
    return Parts(model, scheduler, runner, tokenizer, template, depth=own.depth)


class LLM(llm.LLM):
    """A model to call from a script: `LLM("smollm2").generate(["Hello"])`."""

    def __init__(self, model: str = DEFAULT, **settings: Any) -> None:
        super().__init__(model, build, **settings)


class AsyncLLM(async_llm.AsyncLLM):
    """A model for an event loop, with the step loop on a thread of its own."""

    def __init__(self, model: str = DEFAULT, **settings: Any) -> None:
        parts = build(model, **settings)
        engine = parts.engine()
        super().__init__(ThreadCore(engine), parts.frontend(engine))


def serve(
    model: str = DEFAULT,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    api_keys: tuple[str, ...] = (),
    aliases: tuple[str, ...] = (),
    **settings: Any,
) -> None:
    """Serve a model over HTTP until the process is told to end."""
    parts = build(model, **settings)
    length = parts.scheduler.config.step.max_model_len
    choices = ServerSettings(api_keys=api_keys, aliases=aliases, max_model_len=length)

    async def main() -> None:
        engine = async_llm.AsyncLLM.of(parts)
        app = create_app(engine, model, parts.tokenizer, choices)
        try:
            await http.serve(app, host, port)
        finally:
            await engine.shutdown()

    http.log_to_stderr()
    asyncio.run(main())
