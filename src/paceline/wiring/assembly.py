"""Builds the components of an engine from the name of a model."""

from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from paceline.core.config import LoadConfig, RecordConfig, require
from paceline.core.errors import ConfigError
from paceline.core.garbage import collection_paused
from paceline.engine.components import EngineComponents
from paceline.engine.core.ports import Runner
from paceline.engine.trace.trace_file import TraceTarget
from paceline.hub.catalogue import DEFAULT
from paceline.hub.progress import Progress, silent
from paceline.text.chat_template import ChatTemplate
from paceline.wiring.adapters import pop_adapters, served_adapters
from paceline.wiring.connector import connect, named_connector
from paceline.wiring.constraints import constrained_requests
from paceline.wiring.drafting import find_draft_weights
from paceline.wiring.encoder import assemble as assemble_encoder
from paceline.wiring.encoder import encoder_folder
from paceline.wiring.encoder_room import with_encoder_room
from paceline.wiring.fingerprint import fingerprint
from paceline.wiring.images import load_images, log_images
from paceline.wiring.kv_events_config import kv_events_in, record_events
from paceline.wiring.model import ModelSource, find_model
from paceline.wiring.ranked_device import RankedDevice
from paceline.wiring.recording import scheduler_of
from paceline.wiring.settings import pop_settings, sort_settings
from paceline.wiring.tokenizer import load_tokenizer, sampling_rules


def build(
    model: str = DEFAULT, *, progress: Progress = silent, **settings: Any
) -> EngineComponents:
    """Download a model if necessary, load it, and build a scheduler and a runner for it."""
    record: RecordConfig = pop_settings(RecordConfig, settings)
    lora = pop_adapters(settings)
    rest, own = sort_settings(settings)
    device, events = device_of(own.device), kv_events_in(own.kv_events_config)
    connector = named_connector(own)
    if (folder := encoder_folder(model, own, progress)) is not None:
        require(not lora.enable_lora, "adapters are for models that generate; remove enable_lora")
        require(not own.kv_connector, "an encoder caches no KV; remove kv_connector")
        require(events is None, "an encoder caches no KV; remove kv_events_config")
        require(
            own.tensor_parallel_size == 1, "an encoder has one rank; remove tensor_parallel_size"
        )
        return build_encoder(model, folder, rest, own, record)
    if events is not None:
        record_events(rest)
    with collection_paused():
        source: ModelSource = find_model(
            model, own.load_format, device, progress, own.chat_template
        )
        draft = find_draft_weights(rest, own, device, progress, source)
        on = device_module(device, own, model)
    template = ChatTemplate.of(source.tokenizer)
    constrained = constrained_requests(source.tokenizer, source.checkpoint.config.vocab, own)
    images = load_images(source.path, source.tokenizer, own)
    log_images(images)
    usual, longest = on.USUAL_TOKENS, source.checkpoint.config.max_position
    rest = with_encoder_room(rest, images, usual, longest)
    rest["model_fingerprint"] = fingerprint(source.checkpoint, device, own)
    scheduler, runner = on.assemble(
        rest,
        own,
        source.checkpoint,
        partial(scheduler_of, record=record),
        constrained,
        draft,
        lora,
    )
    depth = own.steps_in_flight(on.DEPTH)
    rules = sampling_rules(source.tokenizer, own)
    return EngineComponents(
        model,
        scheduler,
        runner,
        source.tokenizer,
        template,
        depth=depth,
        rules=rules,
        constrained=constrained,
        images=images,
        adapters=served_adapters(lora, scheduler.config.step.max_loras, runner.host_adapters),
        kv_events=events,
        connector=connector,
        blocks=connect(connector, scheduler, runner),
        trace=trace_of(record, runner),
    )


def device_module(device: str, own: LoadConfig, model: str) -> Any:
    """What assembles an engine. There is a module for each device, so that CUDA is imported on a
    GPU alone."""
    on = import_module(f"paceline.wiring.{device}")
    return on if own.tensor_parallel_size == 1 else RankedDevice(on, device, model)


def build_encoder(
    model: str,
    folder: Path,
    settings: dict[str, Any],
    own: LoadConfig,
    record: RecordConfig,
) -> EngineComponents:
    """The same for a model that only embeds or scores texts."""
    tokenizer = load_tokenizer(str(folder), own.load_format, own.chat_template)
    with collection_paused():
        scheduler, runner = assemble_encoder(
            folder,
            settings,
            own,
            device_of(own.device),
            tokenizer,
            partial(scheduler_of, record=record),
        )
    template, rules = ChatTemplate.of(tokenizer), sampling_rules(tokenizer, own)
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
