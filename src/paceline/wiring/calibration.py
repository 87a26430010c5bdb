"""Calibrates a profile with a model on the device at hand."""

import platform
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

import torch

from paceline import __version__
from paceline.core.settings.checks import require
from paceline.core.system.host import processor_name, waited_s
from paceline.engine.components import EngineComponents
from paceline.engine.frontend.frontend import Frontend
from paceline.hub.repository_files import Progress, silent
from paceline.simulator.calibration.calibrate import calibrate, drafted_errors
from paceline.simulator.calibration.grid import GraphSizes
from paceline.simulator.calibration.served_times import served_terms
from paceline.simulator.calibration.step_meter import StepMeter
from paceline.simulator.device.profile import FrontEndTerms, KVMemory, Profile
from paceline.wiring.assembly import build, device_of

# What a server adds to its front end, for clients on the same machine: usual values.
HTTP = FrontEndTerms(request_s=0.0008, prompt_token_s=2.4e-6, delivery_s=0.0003)


def measured_profile(
    model: str,
    name: str,
    limit_s: float,
    progress: Progress = silent,
    **settings: Any,
) -> Profile:
    """Load a model, measure for about `limit_s` seconds, and fit a profile."""
    components = build(model, progress=progress, **settings)
    device = device_of(str(settings.get("device", "auto")))
    try:
        begun = monotonic()
        about = with_server(components, profile_of(components, name, device))
        config, vocab = components.scheduler.config, components.tokenizer.vocab_size
        meter = StepMeter(
            components.runner, config, components.depth, vocab=vocab, waited_s=waited_s
        )
        left_s = limit_s - (monotonic() - begun)
        profile = calibrate(meter, about, left_s, sizes_of(components.runner))
        return with_drafts_checked(components, profile)
    finally:
        components.runner.close()


def with_drafts_checked(components: EngineComponents, profile: Profile) -> Profile:
    """With errors of steps with drafts, if the engine measured whole turns of them when it
    started: on a GPU, with num_speculative_tokens."""
    scheduler, depth = components.scheduler, components.depth
    times = scheduler.view.step_times
    if times is None or depth == 1:
        return profile
    errors = drafted_errors(profile, scheduler.config, depth, times)
    return replace(profile, error={**profile.error, **errors})


def sizes_of(runner: Any) -> GraphSizes:
    """The sizes of its graphs, if it runs graphs."""
    decode, mixed = getattr(runner, "graphs", None), getattr(runner, "mixed", None)
    return GraphSizes(decode.sizes if decode else (), mixed.lengths if mixed else ())


def profile_of(components: EngineComponents, name: str, device: str) -> Profile:
    """The profile before any step is timed."""
    config = components.scheduler.config
    runner: Any = components.runner
    require(hasattr(runner, "block_bytes"), "an encoder has no decode steps to calibrate")
    block: int = runner.block_bytes().block_bytes
    cache = config.cache
    return Profile(
        name=name or default_name(components.model, device),
        device=device_name(device),
        model=model_name(components.model),
        processor=processor_name() if device == "cpu" else "",
        architecture=platform.machine() if device == "cpu" else "",
        depth=components.depth,
        settings={
            "max_num_batched_tokens": config.step.max_num_batched_tokens,
            "max_num_seqs": config.step.max_num_seqs,
            "max_model_len": config.step.max_model_len,
            "watermark": config.step.watermark,
            "block_size": cache.block_size,
        },
        versions={
            "paceline": __version__,
            "torch": str(torch.__version__),
            "python": platform.python_version(),
        },
        memory=KVMemory(max(block // cache.block_size, 1), block * cache.num_blocks),
        http=HTTP,
    )


def with_server(components: EngineComponents, about: Profile) -> Profile:
    """With what host and front end take, measured without the device."""
    made = Frontend(components.tokenizer, components.template, monotonic, components.rules)
    host, frontend = served_terms(components.scheduler.config, components.depth, made)
    return replace(about, host=host, frontend=frontend)


def device_name(device: str) -> str:
    if device == "cuda":
        return torch.cuda.get_device_name()
    threads = torch.get_num_threads()
    return f"{processor_name()}, {threads} {'thread' if threads == 1 else 'threads'}"


def model_name(model: str) -> str:
    return Path(model).name


def default_name(model: str, device: str) -> str:
    """Letters that a file name may have."""
    return f"{device}-{model_name(model)}".lower().replace(" ", "-")
