"""Builds the components of an engine from the name of a model."""

from functools import partial
from importlib import import_module
from typing import Any

import torch

from paceline.core.config import RecordConfig
from paceline.core.errors import ConfigError
from paceline.core.garbage import collection_paused
from paceline.engine.core.components import EngineComponents
from paceline.hub.catalogue import DEFAULT
from paceline.hub.progress import Progress, silent
from paceline.text.chat_template import ChatTemplate
from paceline.wiring.constraints import constrained_requests
from paceline.wiring.drafting import find_draft_weights
from paceline.wiring.model import ModelSource, find_model
from paceline.wiring.recording import scheduler_of
from paceline.wiring.settings import pop_settings, sort_settings
from paceline.wiring.tokenizer import sampling_rules


def build(
    model: str = DEFAULT, *, progress: Progress = silent, **settings: Any
) -> EngineComponents:
    """Download a model if necessary, load it, and build a scheduler and a runner for it."""
    record: RecordConfig = pop_settings(RecordConfig, settings)
    rest, own = sort_settings(settings)
    device = device_of(own.device)
    with collection_paused():
        source: ModelSource = find_model(
            model, own.load_format, device, progress, own.chat_template
        )
        draft = find_draft_weights(rest, own, source, device, progress)
        # One module per device, so that CUDA is imported only on a GPU.
        on = import_module(f"paceline.wiring.{device}")
    template = ChatTemplate.of(source.tokenizer)
    constrained = constrained_requests(source.tokenizer, source.checkpoint.config.vocab)
    scheduler, runner = on.assemble(
        rest, own, source.checkpoint, partial(scheduler_of, record=record), constrained, draft
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
    )


def device_of(setting: str) -> str:
    """The device that the model runs on; ConfigError if there is no such device."""
    found = torch.cuda.is_available()
    if setting == "cuda" and not found:
        raise ConfigError(
            "device is 'cuda', but torch finds no GPU; use device 'cpu', or install a driver"
        )
    return ("cuda" if found else "cpu") if setting == "auto" else setting
