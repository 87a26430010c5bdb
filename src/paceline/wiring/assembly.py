"""Builds the components of an engine from the name of a model and its settings."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch

from paceline.core.adapter import AdapterConfig, parse_modules
from paceline.core.errors import ConfigError, RequestError
from paceline.core.settings.checks import require
from paceline.core.settings.config import CacheConfig, Config
from paceline.core.settings.features import FULL_ATTENTION, KVEventsConfig, RecordConfig
from paceline.core.settings.load import LoadConfig
from paceline.core.system.host import collection_paused
from paceline.core.system.start import START
from paceline.engine.components import Connection, EngineComponents
from paceline.engine.grammar.constrained_requests import ConstrainedRequests
from paceline.engine.loop.adapters import AdapterHost, AdapterRequests
from paceline.engine.loop.ports import PromptImages, Runner
from paceline.engine.trace.trace_file import TraceTarget
from paceline.hub.catalogue import DEFAULT
from paceline.hub.repository_files import Progress, silent
from paceline.kv import connector as port
from paceline.kv.connector import BlockMemory, Bytes, Connector
from paceline.runner.kv_store import BlockBytes
from paceline.sched.scheduler import Scheduler
from paceline.structured.backend import backend_names
from paceline.structured.compiler import CompilerLimits, GrammarCompiler, LazyCompiler
from paceline.structured.token_table import TokenTable
from paceline.text.chat_template import ChatTemplate
from paceline.text.tokenizer import Tokenizer
from paceline.wiring.device import Device, LoadedRunner, ModelLoad, assemble, device_named
from paceline.wiring.encoder import assemble as assemble_encoder
from paceline.wiring.encoder import encoder_folder
from paceline.wiring.fingerprint import model_fingerprint, system_fingerprint
from paceline.wiring.model import ModelSource, find_draft_weights, find_model
from paceline.wiring.model_files import load_images, load_tokenizer, log_images, sampling_rules
from paceline.wiring.ranks.ranked_runner import RankedBlocks, assemble_ranks
from paceline.wiring.recording import scheduler_of
from paceline.wiring.resident_model import ModelOrigin, resident_model
from paceline.wiring.settings import part_of, pop_settings, sort_settings
from paceline.wiring.vllm.configs import connector_config, kv_events_in
from paceline.wiring.vllm.values import EVENTS

USUAL = 1  # different adapters of running sequences, as in vLLM


def pop_adapters(settings: dict[str, Any]) -> AdapterConfig:
    """Remove the settings of adapters from those that were given, and complete `max_loras`, which
    is one of the scheduler."""
    config: AdapterConfig = pop_settings(AdapterConfig, settings)
    if config.enable_lora and not settings.get("max_loras"):
        settings["max_loras"] = USUAL
    return config


def served_adapters(
    config: AdapterConfig, max_loras: int, host: AdapterHost | None
) -> AdapterRequests | None:
    """None without `enable_lora`. ConfigError if an adapter cannot be loaded."""
    if host is None:
        return None
    adapters = AdapterRequests(host, config.kept(max_loras))
    try:
        adapters.load_all(parse_modules(config.lora_modules))
    except RequestError as error:
        raise ConfigError(f"lora_modules: {error}") from None
    return adapters


def constrained_requests(
    tokenizer: Tokenizer, vocab: int, settings: LoadConfig
) -> ConstrainedRequests | None:
    """For a model with `vocab` logits. None without an end token: no grammar could end."""
    eos = tuple(token for token in tokenizer.eos if token < vocab)
    if not eos:
        return None
    limits = CompilerLimits(limit_s=settings.grammar_compile_limit_s)
    backends = backend_names(settings.structured_outputs_backend)

    def build() -> GrammarCompiler:
        return GrammarCompiler(TokenTable.of(tokenizer, vocab), backends, limits)

    return ConstrainedRequests(LazyCompiler(build), -(-vocab // 32), eos)


SIZES = ("max_num_encoder_input_tokens", "encoder_cache_size")


def with_encoder_room(
    settings: Mapping[str, Any], images: PromptImages | None, usual_tokens: int, longest: int
) -> dict[str, Any]:
    """The settings, in which sizes of the encoder that are not given suffice for the largest image.

    Without them, a step encodes as much as it computes: `usual_tokens`, unless that is given. A
    prompt has at most `longest` tokens. Without chunked prefill, a step computes as many.
    """
    chosen = dict(settings)
    if images is None or not chosen.get("enable_chunked_prefill", True):
        return chosen
    largest = min(images.largest, chosen.get("max_model_len", longest))
    if largest > chosen.get("max_num_batched_tokens", usual_tokens):
        chosen |= {name: largest for name in SIZES if not chosen.get(name)}
    return chosen


class BlockOwner(Protocol):
    """A runner whose blocks other threads may copy."""

    def block_bytes(self) -> BlockBytes | RankedBlocks: ...


class DeviceBlocks:
    """The blocks of a device as a connector sees them."""

    def __init__(self, blocks: BlockBytes | RankedBlocks, config: CacheConfig) -> None:
        self._blocks, self.block_bytes = blocks, blocks.block_bytes
        name = config.model_fingerprint or "unnamed"
        self.layout = f"{name}-{config.block_size}x{self.block_bytes}"
        if isinstance(blocks, RankedBlocks):  # the heads of a block lie in another order
            self.layout += f"-{blocks.ranks}ranks"
        if config.attention_groups != FULL_ATTENTION:  # which layers a block is of follows from it
            kinds = (f"{one.count}{one.kind[0]}{one.window}" for one in config.attention_groups)
            self.layout = "-".join((self.layout, *kinds))
        if config.state_blocks:
            self.layout += f"-{config.state_blocks}states"

    @property
    def memory(self) -> BlockMemory | None:
        if isinstance(self._blocks, RankedBlocks):
            return None  # each rank has memory of its own
        content = self._blocks.content
        device: Any = content.device.type
        index = content.device.index or 0
        return BlockMemory(content.data_ptr(), len(content), self.block_bytes, device, index)

    def host_memory(self, rows: int) -> Bytes:
        return self._blocks.host_memory(rows)

    def read(self, blocks: Sequence[int]) -> Bytes:
        return self._blocks.read(blocks)

    def read_into(self, blocks: Sequence[int], rows: Iterable[Bytes]) -> None:
        self._blocks.read_into(blocks, rows)

    def write(self, blocks: Sequence[int], rows: Iterable[Bytes]) -> None:
        self._blocks.write(blocks, rows)


def named_connector(load_config: LoadConfig) -> Connector | None:
    """The connector of the settings. ConfigError if they are wrong: call it early."""
    config = connector_config(load_config.kv_connector, load_config.kv_transfer_config)
    return port.load(config) if config.kv_connector else None


def connect(
    connector: Connector | None, scheduler: Scheduler, runner: BlockOwner
) -> Connection | None:
    """Give the scheduler its connector. Returns it with the blocks to attach it to."""
    if connector is None:
        return None
    scheduler.connect(connector)
    return Connection(connector, DeviceBlocks(runner.block_bytes(), scheduler.config.cache))


def build(
    model: str = DEFAULT, *, progress: Progress = silent, **settings: Any
) -> EngineComponents:
    """Download a model if necessary, load it, and build a scheduler and a runner for it."""
    record: RecordConfig = pop_settings(RecordConfig, settings)
    lora = pop_adapters(settings)
    rest, load_config = sort_settings(settings)
    device, events = device_of(load_config.device), kv_events_in(load_config.kv_events_config)
    connector = named_connector(load_config)
    if (folder := encoder_folder(model, load_config, progress)) is not None:
        check_encoder(load_config, lora, events)
        return build_encoder(model, folder, rest, load_config, record)
    if events is not None:
        require(
            part_of(CacheConfig, rest).enable_prefix_caching,
            f"{EVENTS} reports cached prefixes, which needs enable_prefix_caching",
        )
        rest["enable_kv_cache_events"] = True
    with collection_paused(), START.phase("files and tokenizer"):
        on = device_named(device)
        on.begin()
        source: ModelSource = find_model(model, load_config, device, progress)
        draft = find_draft_weights(
            rest, load_config, device, progress, source.checkpoint, source.tokenizer
        )
    template = ChatTemplate.of(source.tokenizer)
    sizes = source.checkpoint.config
    constrained = constrained_requests(source.tokenizer, sizes.vocab, load_config)
    images = load_images(source.path, source.tokenizer, load_config, sizes.vision is None)
    log_images(images)
    if sizes.reads_images_whole:
        rest["disable_chunked_mm_input"] = True  # no position reads one that is not computed
    rest = with_encoder_room(rest, images, on.USUAL_TOKENS, sizes.max_position)
    weights = model_fingerprint(source.checkpoint, device, load_config)
    whole = system_fingerprint(weights, source.tokenizer, device, load_config)
    rest |= {"model_fingerprint": weights, "system_fingerprint": whole}
    given = replace(load_config, device=device)
    load = ModelLoad(rest, given, source.checkpoint, constrained, draft, lora)
    scheduler, loaded = assembled(on, model, load, partial(scheduler_of, record=record))
    runner = loaded.runner
    return EngineComponents(
        model,
        scheduler,
        runner,
        source.tokenizer,
        template,
        depth=load_config.steps_in_flight(on.DEPTH),
        rules=sampling_rules(source.tokenizer, load_config),
        constrained=constrained,
        images=images,
        adapters=served_adapters(lora, scheduler.config.step.max_loras, runner.host_adapters),
        kv_events=events,
        connection=connect(connector, scheduler, runner),
        trace=trace_of(record, runner),
        memory=resident_model(loaded, ModelOrigin(model, sizes, device, load_config), weights),
    )


def check_encoder(
    load_config: LoadConfig, lora: AdapterConfig, events: KVEventsConfig | None
) -> None:
    """ConfigError if a setting is for models that generate."""
    require(not lora.enable_lora, "adapters are for models that generate; remove enable_lora")
    require(not load_config.kv_connector, "an encoder caches no KV; remove kv_connector")
    require(events is None, "an encoder caches no KV; remove kv_events_config")
    require(
        not load_config.batch_invariant, "batch_invariant is for models that generate; remove it"
    )
    require(
        load_config.tensor_parallel_size == 1,
        "an encoder has one rank; remove tensor_parallel_size",
    )


def assembled(
    on: Device, model: str, load: ModelLoad, scheduler_of: Callable[[Config], Scheduler]
) -> tuple[Scheduler, LoadedRunner]:
    if load.config.tensor_parallel_size == 1:
        return assemble(on, load, scheduler_of)
    return assemble_ranks(on, model, load, scheduler_of)


def build_encoder(
    model: str,
    folder: Path,
    settings: dict[str, Any],
    load_config: LoadConfig,
    record: RecordConfig,
) -> EngineComponents:
    """The same for a model that only embeds or scores texts."""
    tokenizer = load_tokenizer(str(folder), load_config.load_format, load_config.chat_template)
    with collection_paused():
        scheduler, runner = assemble_encoder(
            folder,
            settings,
            load_config,
            device_of(load_config.device),
            tokenizer,
            partial(scheduler_of, record=record),
        )
    template, rules = ChatTemplate.of(tokenizer), sampling_rules(tokenizer, load_config)
    trace = trace_of(record, runner)
    return EngineComponents(model, scheduler, runner, tokenizer, template, rules=rules, trace=trace)


def trace_of(record: RecordConfig, runner: Runner) -> TraceTarget:
    """Where the engine writes its timeline. Some runners have no blocks, or not all of them."""
    size = getattr(runner, "kv_block_bytes", 0)
    return TraceTarget(record.trace, record.trace_name, size)


def device_of(setting: str) -> str:
    """The device that the model runs on; ConfigError if there is no such device."""
    found = torch.cuda.is_available()
    if setting == "cuda" and not found:
        raise ConfigError(
            "device is 'cuda', but torch finds no GPU; use device 'cpu', or install a driver"
        )
    return ("cuda" if found else "cpu") if setting == "auto" else setting
